"""Breaks in a series, and curves against golden ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.changes import change_points
from pipeline.analysis.facts import Curve
from pipeline.analysis.judge import Verdict
from pipeline.analysis.numerics import Band, judge_numerics


def series(*levels: tuple[float, int], sigma: float = 0.01, seed: int = 1) -> list[float]:
    """Levels, each so many nights long."""
    generator = np.random.default_rng(seed)
    return [level * math.exp(generator.normal(0, sigma)) for level, count in levels for _ in range(count)]


@pytest.mark.parametrize(
    ("values", "breaks"),
    [
        (series((1.0, 60)), []),
        (series((1.0, 40), (1.03, 20)), [40]),
        (series((1.0, 20), (1.05, 20), (0.97, 20)), [20, 40]),
        (series((1.0, 4)), []),
        ([*series((1.0, 30)), 1.5, *series((1.0, 30), seed=2)], []),
    ],
)
def test_breaks_are_found_where_they_are(values: list[float], breaks: list[int]) -> None:
    """Within two nights, and one outlier is none."""
    found = change_points(values)
    assert len(found) == len(breaks)
    assert all(abs(one.index - place) <= 2 for one, place in zip(found, breaks, strict=True))


def test_a_quiet_series_has_no_breaks() -> None:
    """At most one of 80 at the level of 0.001."""
    assert sum(bool(change_points(series((1.0, 60), seed=seed))) for seed in range(80)) <= 1


def curve(values: list[float]) -> Curve:
    """A curve from step 1."""
    steps = tuple(range(1, len(values) + 1))
    return Curve(steps=steps, values=tuple(values), times=tuple(map(float, steps)))


GOLDEN = [3.0, 2.5, 2.25, 2.125]


@pytest.mark.parametrize(
    ("found", "relative", "share", "verdict"),
    [
        (GOLDEN, 0.0, 0.0, Verdict.passed),
        ([*GOLDEN[:3], 2.1250001], 0.0, 0.0, Verdict.failed),
        ([*GOLDEN[:3], 2.1250001], 1e-6, 0.0, Verdict.passed),
        ([*GOLDEN[:3], 2.2], 1e-3, 0.0, Verdict.failed),
        ([*GOLDEN[:3], 2.2], 1e-3, 0.25, Verdict.passed),
        (GOLDEN[:3], 1e-3, 0.0, Verdict.failed),
        ([*GOLDEN[:3], math.nan], 1.0, 0.0, Verdict.failed),
        ([*GOLDEN[:3], math.inf], 1.0, 0.0, Verdict.failed),
        ([*GOLDEN, 9.0], 0.0, 0.0, Verdict.passed),
    ],
)
def test_a_curve_against_its_golden_one(found: list[float], relative: float, share: float, verdict: Verdict) -> None:
    """Bit by bit or in a band; a missing step and what is not finite are outside of any."""
    band = {"train/loss": Band(relative=relative, steps_outside=share)}
    judged = judge_numerics({"train/loss": curve(GOLDEN)}, {"train/loss": curve(found)}, band)
    assert judged.verdict is verdict


def test_not_a_number_never_equals_itself_and_no_golden_is_no_baseline() -> None:
    """Two runs that both broke are not a match."""
    broken = {"train/loss": curve([1.0, math.nan])}
    assert judge_numerics(broken, broken, {}).verdict is Verdict.failed
    assert judge_numerics({}, broken, {}).verdict is Verdict.no_baseline
    assert judge_numerics({"train/loss": curve(GOLDEN)}, {}, {}).verdict is Verdict.failed


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.floats(1e-9, 0.1))
def test_what_lies_inside_a_band_passes(values: list[float], relative: float) -> None:
    """Any curve moved by less than its band."""
    moved = curve([value * (1 + relative * 0.9) for value in values])
    judged = judge_numerics({"k": curve(values)}, {"k": moved}, {"k": Band(relative=relative)})
    assert judged.verdict is Verdict.passed
