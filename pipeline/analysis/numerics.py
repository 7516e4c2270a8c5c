"""A loss curve against a golden one: bit by bit where the run is deterministic, else inside a band (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.analysis.facts import Curve
from pipeline.analysis.judge import Judgement, Verdict

KEYS = ("train/loss", "train/grad_norm")
"""Curves that have to repeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """How far a curve may be from its golden one."""

    relative: float
    """Largest relative difference of a step; 0 compares bit by bit."""
    steps_outside: float = 0.0
    """Share of steps that may lie outside."""


EXACT = Band(relative=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Departure:
    """Where a curve leaves its golden one."""

    key: str
    outside: int
    steps: int
    first_step: int
    golden: float
    found: float
    largest: float
    """Largest relative difference; inf where a value is not finite or a step is missing."""


def departure(key: str, golden: Curve, found: Curve | None, band: Band) -> Departure | None:
    """The departure of one curve beyond its band, or None; a step that is missing or not finite is outside."""
    there = dict(zip(found.steps, found.values, strict=True)) if found else {}
    steps = [(step, value, there.get(step, math.nan)) for step, value in zip(golden.steps, golden.values, strict=True)]
    outside = [one for one in steps if not _inside(one[1], one[2], band)]
    if len(outside) <= band.steps_outside * len(steps):
        return None
    first = outside[0]
    return Departure(
        key=key,
        outside=len(outside),
        steps=len(steps),
        first_step=first[0],
        golden=first[1],
        found=first[2],
        largest=max(_relative(value, other) for _, value, other in outside),
    )


def judge_numerics(golden: Mapping[str, Curve], found: Mapping[str, Curve], bands: Mapping[str, Band]) -> Judgement:
    """PASS where every golden curve is met; NO_BASELINE where there is none. `bands` are by key, exact where absent."""
    if not golden:
        return Judgement(verdict=Verdict.no_baseline, reasons=("no golden curve; `himori baseline set` makes one",))
    departures = [
        one
        for key, curve in golden.items()
        if (one := departure(key, curve, found.get(key), bands.get(key, EXACT))) is not None
    ]
    if departures:
        return Judgement(verdict=Verdict.failed, reasons=tuple(_words(one, bands) for one in departures))
    kinds = ", ".join(f"{key} {_band_words(bands.get(key, EXACT))}" for key in golden)
    return Judgement(verdict=Verdict.passed, reasons=(f"as golden: {kinds}",))


def _inside(golden: float, found: float, band: Band) -> bool:
    if not math.isfinite(found) or not math.isfinite(golden):
        return False
    return golden == found if band.relative == 0 else _relative(golden, found) <= band.relative


def _relative(golden: float, found: float) -> float:
    if not math.isfinite(found) or not math.isfinite(golden):
        return math.inf
    scale = max(abs(golden), 1e-12)
    return abs(found - golden) / scale


def _words(one: Departure, bands: Mapping[str, Band]) -> str:
    return (
        f"{one.key}: {one.outside} of {one.steps} steps are not {_band_words(bands.get(one.key, EXACT))}; the first is "
        f"step {one.first_step}: golden {one.golden!r}, found {one.found!r}, largest difference {one.largest:.3g}"
    )


def _band_words(band: Band) -> str:
    return "bit by bit the same" if band.relative == 0 else f"within {band.relative:.2g}"
