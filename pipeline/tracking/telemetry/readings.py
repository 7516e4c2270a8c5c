"""One sample of a node, and what it becomes in the telemetry journal (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

KIND = "telemetry"
"""Kind of the events in a telemetry journal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """One GPU at one moment; None is what its driver doesn't tell."""

    bus_id: str
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Counted by the GPU since its driver was loaded."""
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    utilisation_percent: float | None = None
    memory_used_gib: float | None = None
    throttle_reasons: int | None = None
    """NVML's bit mask, see intervals.REASONS."""
    thermal_violation_s: float | None = None
    """Time for which clocks were held down by temperature, counted since the driver was loaded."""
    power_violation_s: float | None = None
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the last reset."""
    remapped_rows: int | None = None
    """Rows of memory replaced after uncorrected errors, over the GPU's life."""
    nvlink_sent_gib: float | None = None
    """Counted since the driver was loaded, over all links."""
    nvlink_received_gib: float | None = None
    xid: tuple[int, ...] = ()
    """Codes of critical errors since the sample before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReading:
    """The node itself at one moment."""

    cpu_percent: float
    """Busy share of all CPUs of the node."""
    load_1min: float
    memory_used_gib: float
    memory_available_gib: float
    disk_free_gib: float
    """Of the file system that holds the run directory."""
    rdma_sent_gib: float | None = None
    """Counted since boot, over all ports."""
    rdma_received_gib: float | None = None
    rdma_errors: int | None = None
    """Symbol errors, link failures and discarded packets since boot, over all ports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """All that was read of a node at one moment."""

    time: float
    """Seconds since the epoch."""
    elapsed_s: float
    """Since the first sample of the run on this node."""
    host: HostReading
    gpus: tuple[GpuReading, ...] = ()


def to_data(sample: Sample, *, as_curves: bool) -> dict[str, object]:
    """The `data` of the sample's event; what isn't known is left out.

    `as_curves` adds what MLflow shows of it, as points over whole seconds of the run.
    """
    shown: dict[str, object] = {"step": int(sample.elapsed_s), "values": metrics(sample)} if as_curves else {}
    return {
        "elapsed_s": round(sample.elapsed_s, 3),
        "host": _known(sample.host),
        "gpus": [_known(gpu) for gpu in sample.gpus],
        **shown,
    }


def from_data(time: float, data: Mapping[str, Any]) -> Sample:
    """The sample an event was made of."""
    gpus = [GpuReading(**{**gpu, "xid": tuple(gpu.get("xid", ()))}) for gpu in data["gpus"]]
    return Sample(time=time, elapsed_s=data["elapsed_s"], host=HostReading(**data["host"]), gpus=tuple(gpus))


def metrics(sample: Sample) -> dict[str, float]:
    """Curves of a sample by name: over the GPUs of the node the mean, and the extreme that matters."""
    found = {
        "gpu/power_mean_w": _mean(gpu.power_w for gpu in sample.gpus),
        "gpu/temperature_max_c": _most(gpu.temperature_c for gpu in sample.gpus),
        "gpu/memory_temperature_max_c": _most(gpu.memory_temperature_c for gpu in sample.gpus),
        "gpu/sm_clock_min_mhz": _least(gpu.sm_clock_mhz for gpu in sample.gpus),
        "gpu/utilisation_mean_percent": _mean(gpu.utilisation_percent for gpu in sample.gpus),
        "gpu/memory_used_max_gib": _most(gpu.memory_used_gib for gpu in sample.gpus),
        "host/cpu_percent": sample.host.cpu_percent,
        "host/memory_used_gib": sample.host.memory_used_gib,
        "host/disk_free_gib": sample.host.disk_free_gib,
    }
    return {name: value for name, value in found.items() if value is not None}


def _known(reading: GpuReading | HostReading) -> dict[str, object]:
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    return {name: _rounded(value) for name, value in values.items() if value is not None and value != ()}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return list(value) if isinstance(value, tuple) else value


def _present(values: Iterable[float | None]) -> Sequence[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    present = _present(values)
    return sum(present) / len(present) if present else None


def _most(values: Iterable[float | None]) -> float | None:
    return max(_present(values), default=None)


def _least(values: Iterable[float | None]) -> float | None:
    return min(_present(values), default=None)
