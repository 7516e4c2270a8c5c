"""When clocks were held down, and by what, from a series of samples (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.tracking.telemetry.readings import GpuReading, Sample

REASONS = {
    "power": 0x04,
    "slowdown": 0x08,
    "thermal": 0x20 | 0x40,
    "power_brake": 0x80,
}
"""Bits of NVML's clocks event reasons that hold clocks down: software power cap; hardware slowdown; software and
hardware thermal slowdown; external power brake. Idle, application clocks and sync boost are no throttling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThrottleInterval:
    """A time for which the clocks of a GPU were held down by one cause."""

    bus_id: str
    cause: str
    """A key of REASONS."""
    start: float
    """Seconds since the epoch."""
    end: float


def throttle_intervals(samples: Sequence[Sample]) -> list[ThrottleInterval]:
    """Throttling by GPU and cause, by start; a reason seen in a sample holds until the sample after it."""
    found: list[ThrottleInterval] = []
    for index, gpu in enumerate(samples[0].gpus if samples else ()):
        for cause, mask in REASONS.items():
            found += _intervals(samples, index, gpu.bus_id, cause, mask)
    return sorted(found, key=lambda interval: interval.start)


def _intervals(samples: Sequence[Sample], index: int, bus_id: str, cause: str, mask: int) -> list[ThrottleInterval]:
    found: list[ThrottleInterval] = []
    since: float | None = None
    for sample in samples:
        held = bool((_gpu(sample, index).throttle_reasons or 0) & mask)
        if held and since is None:
            since = sample.time
        if not held and since is not None:
            found.append(ThrottleInterval(bus_id=bus_id, cause=cause, start=since, end=sample.time))
            since = None
    if since is not None and samples[-1].time > since:
        found.append(ThrottleInterval(bus_id=bus_id, cause=cause, start=since, end=samples[-1].time))
    return found


def _gpu(sample: Sample, index: int) -> GpuReading:
    """A GPU that fell off the bus is read as nothing known."""
    return sample.gpus[index] if index < len(sample.gpus) else GpuReading(bus_id="")
