"""Verdicts on nights, and the rates that are promised for them."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.analysis.judge import Expectation, Verdict, judge
from pipeline.analysis.screening import Baseline, Night, Repeat, baseline_of, confirm, screen

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "simulation"))

from nightly_power import Noise, simulate

START = datetime.date(2026, 1, 1)
SLOW_PAIRS = [(1.0, 1.031), (1.002, 1.030), (0.999, 1.029)]
LIKE_PAIRS = [(1.0, 1.003), (1.002, 0.999), (0.999, 1.001)]


def nights(values: Sequence[float], *, node: str = "n1") -> list[Night]:
    """A night a value, three repeats each."""
    return [
        Night(
            date=START + datetime.timedelta(days=index),
            repeats=tuple(Repeat(value=value * factor, nodes=(node,)) for factor in (0.998, 1.0, 1.002)),
        )
        for index, value in enumerate(values)
    ]


def wavy(count: int, *, sigma: float = 0.005) -> list[float]:
    """Values that spread without chance."""
    return [math.exp(sigma * 1.4 * math.sin(2.4 * index)) for index in range(count)]


HISTORY = nights(wavy(20))


def tonight(value: float, *, invalid: str = "", node: str = "n1", day: int = 20) -> Night:
    """A night after the history."""
    repeats = tuple(Repeat(value=value * factor, nodes=(node,), invalid=invalid) for factor in (0.998, 1.0, 1.002))
    return Night(date=START + datetime.timedelta(days=day), repeats=repeats)


KNOWN = Expectation(reason="slow all-reduce", until=START + datetime.timedelta(days=30))
OVER = Expectation(reason="slow all-reduce", until=START + datetime.timedelta(days=10))


@pytest.mark.parametrize(
    ("night", "pairs", "expected", "verdict"),
    [
        (tonight(1.0), None, None, Verdict.passed),
        (tonight(0.9), None, None, Verdict.passed),
        (tonight(1.05), SLOW_PAIRS, None, Verdict.failed),
        (tonight(1.05), LIKE_PAIRS, None, Verdict.passed),
        (tonight(1.05), SLOW_PAIRS, KNOWN, Verdict.xfail),
        (tonight(1.05), SLOW_PAIRS, OVER, Verdict.failed),
        (tonight(1.0), None, KNOWN, Verdict.xpass),
        (tonight(1.05, invalid="throttled"), None, None, Verdict.invalid),
        (tonight(1.05, invalid="wrong node"), None, KNOWN, Verdict.invalid),
        (None, None, None, Verdict.not_run),
        (Night(date=START, repeats=()), None, None, Verdict.not_run),
    ],
)
def test_verdicts(
    night: Night | None, pairs: list[tuple[float, float]] | None, expected: Expectation | None, verdict: Verdict
) -> None:
    """One of each."""
    found = judge(HISTORY, night, guard=0.03, pairs=pairs, expected=expected)
    assert found.verdict is verdict
    assert found.reasons


def test_a_suspicion_asks_for_pairs_and_is_no_verdict() -> None:
    """Nothing is called a regression before it was run again side by side."""
    found = judge(HISTORY, tonight(1.05), guard=0.03)
    assert found.verdict is Verdict.passed
    assert found.needs_confirmation
    assert not judge(HISTORY, tonight(1.0), guard=0.03).needs_confirmation
    assert judge(HISTORY, tonight(1.05), guard=0.03, expected=KNOWN).verdict is Verdict.passed


def test_a_short_history_is_no_baseline_and_a_noisy_one_has_no_power() -> None:
    """It says how many nights are missing, or the smallest slowdown it could have seen."""
    assert judge(HISTORY[:4], tonight(1.0), guard=0.03).verdict is Verdict.no_baseline
    noisy = judge(nights(wavy(20, sigma=0.04)), tonight(1.0), guard=0.03)
    assert noisy.verdict is Verdict.not_powered
    assert noisy.smallest is not None
    assert noisy.smallest > 0.05
    assert f"{noisy.smallest:.1%}" in " ".join(noisy.reasons)
    assert judge(nights(wavy(20, sigma=0.04)), tonight(1.0), guard=0.2).verdict is Verdict.passed


def test_without_confirmation_one_bad_night_is_forgiven_and_two_are_not() -> None:
    """Where nothing can be run again."""
    once = judge(HISTORY, tonight(1.06), guard=0.05, can_confirm=False)
    twice = judge([*HISTORY, tonight(1.06)], tonight(1.06, day=21), guard=0.05, can_confirm=False)
    assert once.verdict is Verdict.passed
    assert twice.verdict is Verdict.failed


def test_a_slow_node_is_expected_to_be_slow() -> None:
    """What a node always costs is no regression, and a usual value on it would be a good night."""
    history = [night if index % 2 else nights([1.04], node="slow")[0] for index, night in enumerate(nights(wavy(24)))]
    baseline = baseline_of(history)
    assert isinstance(baseline, Baseline)
    assert baseline.nodes["slow"] > baseline.nodes["n1"] + 0.02
    assert not screen(baseline, [tonight(1.04, node="slow")]).suspicious
    assert screen(baseline, [tonight(1.04)]).suspicious


def test_invalid_nights_and_bad_ones_do_not_move_the_baseline() -> None:
    """Medians: three bad nights in twenty are no new normal; what does not count isn't counted."""
    bad = [*nights(wavy(17)), *(tonight(1.3, day=day) for day in (17, 18, 19))]
    held = [*HISTORY, tonight(2.0, invalid="throttled")]
    first, second, third = (baseline_of(history) for history in (HISTORY, bad, held))
    assert first is not None
    assert second is not None
    assert second.center == pytest.approx(first.center, abs=0.004)
    assert third == first


def test_a_stale_baseline_warns() -> None:
    """When its last night is long ago."""
    found = judge(HISTORY, tonight(1.0, day=200), guard=0.03)
    assert any("stale" in reason for reason in found.reasons)


def test_confirmation_needs_a_difference_that_is_sure_and_large_enough() -> None:
    """Pairs that scatter prove nothing, nor does half a percent however sure."""
    assert confirm(SLOW_PAIRS).confirmed
    assert not confirm(LIKE_PAIRS).confirmed
    assert not confirm([(1.0, 1.10), (1.0, 0.98), (1.0, 1.01)]).confirmed
    assert not confirm([(1.0, 1.005)] * 20).confirmed


def test_the_promised_rates_hold() -> None:
    """Noise 1 % between nights, 3 repeats: 3 % is seen within 3 nights in 95 %, false alarms below 1 in 100 nights."""
    found = simulate(Noise(between=0.01), repeats=3, trials=100, slowdowns=(0.03,), seed=11)
    assert found.detected[0.03] >= 0.95
    assert found.false_alarms <= 0.01
    assert 0.01 < found.smallest < 0.03
