"""What a node's samples add up to: energy, throttling, faults, one sample at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.tracking.telemetry.intervals import REASONS
from pipeline.tracking.telemetry.readings import GpuReading, Sample

_COUNTED = {"thermal": "thermal_violation_s", "power": "power_violation_s"}
"""Causes whose time the driver counts, so that nothing between two samples is missed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetrySummary:
    """What became of the hardware of a node, or of several."""

    seconds: float
    """From the first sample to the last."""
    energy_j: float | None = None
    """Of all GPUs; None where neither counters nor power were told."""
    power_mean_w: float | None = None
    """Of one GPU."""
    temperature_max_c: float | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Share of time that the worst GPU was held down, by cause; causes that never occurred are left out."""
    ecc_uncorrected: int = 0
    """New ones, over all GPUs."""
    xid: tuple[int, ...] = ()
    rdma_errors: int = 0
    """New ones."""


@dataclass(slots=True)
class NodeTotals:
    """Sums over the samples of one node and attempt, in the order of time."""

    first: Sample | None = None
    last: Sample | None = None
    xid: tuple[int, ...] = ()
    temperature_max_c: float | None = None
    _power_j: float = 0.0
    """Power integrated over time, by trapezoids."""
    _held_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """By cause and bus id."""

    def absorb(self, sample: Sample) -> None:
        """Adds the next sample; a throttle reason holds from the sample it is seen in to the one after it."""
        before = self.last
        if before is not None:
            seconds = max(0.0, sample.time - before.time)
            known = {gpu.bus_id: gpu for gpu in before.gpus}
            for gpu in sample.gpus:
                self._add(known.get(gpu.bus_id), gpu, seconds)
        self.first = self.first or sample
        self.last = sample
        self.xid += tuple(code for gpu in sample.gpus for code in gpu.xid)
        self.temperature_max_c = _most([self.temperature_max_c, *(gpu.temperature_c for gpu in sample.gpus)])

    def _add(self, before: GpuReading | None, gpu: GpuReading, seconds: float) -> None:
        if before is None:
            return
        if before.power_w is not None and gpu.power_w is not None:
            self._power_j += (before.power_w + gpu.power_w) / 2 * seconds
        for cause, mask in REASONS.items():
            if (before.throttle_reasons or 0) & mask:
                key = cause, gpu.bus_id
                self._held_s[key] = self._held_s.get(key, 0.0) + seconds

    def summary(self) -> TelemetrySummary | None:
        """None while there are fewer than two samples."""
        if self.first is None or self.last is None or self.last.time <= self.first.time:
            return None
        first, last = self.first, self.last
        seconds = last.time - first.time
        return TelemetrySummary(
            seconds=seconds,
            energy_j=self._energy_j(first, last),
            power_mean_w=self._power_j / seconds / len(last.gpus) if last.gpus and self._power_j else None,
            temperature_max_c=self.temperature_max_c,
            throttled=self._throttled(first, last, seconds),
            ecc_uncorrected=int(sum(_growth(first, last, "ecc_uncorrected"))),
            xid=self.xid,
            rdma_errors=max(0, (last.host.rdma_errors or 0) - (first.host.rdma_errors or 0)),
        )

    def _energy_j(self, first: Sample, last: Sample) -> float | None:
        counted = _growth(first, last, "energy_j")
        return float(sum(counted)) if counted else self._power_j or None

    def _throttled(self, first: Sample, last: Sample, seconds: float) -> dict[str, float]:
        shares: dict[str, float] = {}
        for (cause, _), held_s in self._held_s.items():
            shares[cause] = max(shares.get(cause, 0.0), held_s / seconds)
        for cause, name in _COUNTED.items():
            if counted := _growth(first, last, name):
                shares[cause] = min(1.0, max(counted) / seconds)
        return {cause: share for cause, share in shares.items() if share > 0}


def combine(summaries: Iterable[TelemetrySummary]) -> TelemetrySummary | None:
    """All nodes of a run: sums, and the worst of what matters; None where there are none."""
    known = list(summaries)
    if not known:
        return None
    causes = {cause for one in known for cause in one.throttled}
    energies = [one.energy_j for one in known if one.energy_j is not None]
    powers = [one.power_mean_w for one in known if one.power_mean_w is not None]
    return TelemetrySummary(
        seconds=max(one.seconds for one in known),
        energy_j=sum(energies) if energies else None,
        power_mean_w=sum(powers) / len(powers) if powers else None,
        temperature_max_c=_most([one.temperature_max_c for one in known]),
        throttled={cause: max(one.throttled.get(cause, 0.0) for one in known) for cause in sorted(causes)},
        ecc_uncorrected=sum(one.ecc_uncorrected for one in known),
        xid=tuple(code for one in known for code in one.xid),
        rdma_errors=sum(one.rdma_errors for one in known),
    )


def throttle_text(throttled: Mapping[str, float]) -> str:
    """For people: `power 91.0 %, thermal 3.2 %`; `none` when nothing was held down."""
    parts = [f"{cause} {100 * share:.1f} %" for cause, share in sorted(throttled.items())]
    return ", ".join(parts) or "none"


def _growth(first: Sample, last: Sample, name: str) -> list[float]:
    """By how much a counter grew on each GPU that tells it; one that was reset meanwhile is left out."""
    before = {gpu.bus_id: getattr(gpu, name) for gpu in first.gpus}
    pairs = [(before.get(gpu.bus_id), getattr(gpu, name)) for gpu in last.gpus]
    return [end - start for start, end in pairs if start is not None and end is not None and end >= start]


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
