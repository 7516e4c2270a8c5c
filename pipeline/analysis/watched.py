"""What the GPUs of a run did while it trained, from the samples of its nodes: energy, throttling, traces to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.analysis.facts import Band, GpuTrace
from pipeline.rundir import RunDir
from pipeline.tracking.journal import read_events
from pipeline.tracking.telemetry.intervals import throttle_intervals
from pipeline.tracking.telemetry.readings import KIND, Sample, from_data

SPOILS = ("slowdown", "thermal", "power_brake")
"""Causes that make a run unfit for comparison; a power cap at the board's limit is how a busy GPU lives."""
LEAST_SHARE = 0.02
"""Share of the steady time from which throttling counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """All nodes of a run together."""

    traces: tuple[GpuTrace, ...] = ()
    bands: tuple[Band, ...] = ()
    power_limit_watts: int | None = None
    energy_j: float | None = None
    """Of all GPU boards between the two moments that were asked for; None where a counter is missing."""
    throttled: str = ""


def watch(run: RunDir, begin: float, end: float) -> Watched | None:
    """What was sampled between two moments, seconds since the epoch; None where nobody sampled a GPU."""
    nodes = {node: samples for node, samples in _samples(run, begin, end) if samples and samples[0].gpus}
    if not nodes:
        return None
    bands = tuple(
        Band(gpu=f"{node} {one.bus_id}", cause=one.cause, begin=one.start, end=one.end)
        for node, samples in nodes.items()
        for one in throttle_intervals(samples)
    )
    limits = {gpu.power_limit_w for samples in nodes.values() for one in samples for gpu in one.gpus}
    known = limits - {None}
    return Watched(
        traces=tuple(trace for node, samples in nodes.items() for trace in _traces(node, samples)),
        bands=bands,
        power_limit_watts=round(known.pop() or 0) if len(known) == 1 else None,
        energy_j=_energy(list(nodes.values())),
        throttled=_spoiled(bands, end - begin),
    )


def _samples(run: RunDir, begin: float, end: float) -> list[tuple[str, list[Sample]]]:
    found: list[tuple[str, list[Sample]]] = []
    for attempt in run.attempts():
        for path in sorted(attempt.telemetry_dir.glob("*.jsonl")):
            samples: list[Sample] = []
            offset = 0
            while (chunk := read_events(path, offset)).offset != offset:
                samples += [from_data(one.time, one.data) for one in chunk.events if one.kind == KIND]
                offset = chunk.offset
            found.append((path.stem, [one for one in samples if begin <= one.time <= end]))
    return found


def _traces(node: str, samples: Sequence[Sample]) -> list[GpuTrace]:
    gpus = {gpu.bus_id: number for number, gpu in enumerate(samples[0].gpus)}
    return [
        GpuTrace(
            gpu=f"{node} {bus_id}",
            times=tuple(one.time for one in samples if number < len(one.gpus)),
            power_watts=tuple(one.gpus[number].power_w for one in samples if number < len(one.gpus)),
            temperature_c=tuple(one.gpus[number].temperature_c for one in samples if number < len(one.gpus)),
        )
        for bus_id, number in gpus.items()
    ]


def _energy(nodes: Sequence[Sequence[Sample]]) -> float | None:
    total = 0.0
    for samples in nodes:
        for first, last in zip(samples[0].gpus, samples[-1].gpus, strict=False):
            if first.energy_j is None or last.energy_j is None:
                return None
            total += last.energy_j - first.energy_j
    return total or None


def _spoiled(bands: Sequence[Band], seconds: float) -> str:
    """The worst GPU's share of the time, by cause."""
    held: dict[tuple[str, str], float] = {}
    for band in bands:
        if band.cause in SPOILS:
            held[band.gpu, band.cause] = held.get((band.gpu, band.cause), 0.0) + band.end - band.begin
    worst = {key: time / seconds for key, time in held.items() if time > LEAST_SHARE * seconds}
    return ", ".join(f"{cause} on {gpu} for {share:.0%} of the steady time" for (gpu, cause), share in worst.items())
