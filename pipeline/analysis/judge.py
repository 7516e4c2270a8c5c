"""Verdicts on one night of a series: what its history and a confirmation side by side make of it (pure).

docs/nightly.md has the rates of false alarms and of detection, from a simulation.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.analysis.screening import (
    FEWEST_NIGHTS,
    LOOK_BACK,
    NIGHTS_TO_SEE,
    POWER,
    Baseline,
    Night,
    Screening,
    baseline_of,
    confirm,
    screen,
    screen_alone,
)

STALE_DAYS = 60


class Verdict(Enum):
    """What a night says about a series."""

    passed = "PASS"
    failed = "FAIL"
    xfail = "XFAIL"
    """Fails as is known, until the date given."""
    xpass = "XPASS"
    """Was expected to fail and doesn't: take the expectation away."""
    no_baseline = "NO_BASELINE"
    not_powered = "NOT_POWERED"
    """Nothing was seen, but what was to be guarded against would not have been seen either."""
    not_run = "NOT_RUN"
    """Never left the queue by the deadline."""
    invalid = "INVALID"
    """Throttled, foreign load or the wrong node: not counted."""


IS_REGRESSION = frozenset({Verdict.failed, Verdict.xpass})
"""Verdicts that end a suite with exit code 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """A failure that is known."""

    reason: str
    until: datetime.date
    """From the day after, it is a failure again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict on one night, with what it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    slowdown: float | None = None
    smallest: float | None = None
    needs_confirmation: bool = False
    """Whether pairs have to be run before this can be a regression."""


def judge(
    history: Sequence[Night],
    night: Night | None,
    *,
    guard: float,
    pairs: Sequence[tuple[float, float]] | None = None,
    can_confirm: bool = True,
    expected: Expectation | None = None,
    today: datetime.date | None = None,
) -> Judgement:
    """The verdict on one night after the nights of `history`, oldest first.

    `guard` is the slowdown the series has to be guarded against (0.03 for 3 %), `pairs` are (baseline, candidate)
    values of the confirmation, None while there was none; with `can_confirm` false the history decides alone, and
    only two slow nights in a row count. `night` is None when nothing left the queue.
    """
    found = _judge(history, night, guard=guard, pairs=pairs, can_confirm=can_confirm)
    return found if expected is None else _as_expected(found, expected, today or (night.date if night else None))


def _judge(
    history: Sequence[Night],
    night: Night | None,
    *,
    guard: float,
    pairs: Sequence[tuple[float, float]] | None,
    can_confirm: bool,
) -> Judgement:
    if night is None or not night.repeats:
        return Judgement(verdict=Verdict.not_run, reasons=("nothing of it left the queue by the deadline",))
    if not night.valid:
        causes = dict.fromkeys(one.invalid for one in night.repeats)
        return Judgement(verdict=Verdict.invalid, reasons=tuple(causes))
    baseline = baseline_of(history)
    if baseline is None:
        counted = sum(1 for one in history if one.valid)
        why = (f"{counted} nights count so far, {FEWEST_NIGHTS} are needed",)
        return Judgement(verdict=Verdict.no_baseline, reasons=why)
    recent = [*history[-max(LOOK_BACK) :], night]
    seen = screen(baseline, recent) if can_confirm else screen_alone(baseline, recent)
    return _weighed(seen, baseline, night, guard=guard, pairs=pairs, can_confirm=can_confirm)


def _weighed(
    seen: Screening,
    baseline: Baseline,
    night: Night,
    *,
    guard: float,
    pairs: Sequence[tuple[float, float]] | None,
    can_confirm: bool,
) -> Judgement:
    shown = (
        f"{seen.slowdown:+.1%} against {baseline.nights} nights whose spread is {baseline.sigma:.1%}; "
        f"smallest slowdown seen within {NIGHTS_TO_SEE} nights in {POWER:.0%}: {seen.smallest:.1%}",
        *_stale(baseline, night),
    )
    verdict, needs, more = _decided(seen, pairs, can_confirm=can_confirm)
    if verdict is Verdict.passed and not needs and seen.smallest > guard:
        verdict = Verdict.not_powered
        more = (*more, f"the guard of {guard:.1%} lies below it: more repeats or a quieter machine are needed")
    return Judgement(
        verdict=verdict,
        reasons=(*shown, *more),
        slowdown=seen.slowdown,
        smallest=seen.smallest,
        needs_confirmation=needs,
    )


def _decided(
    seen: Screening, pairs: Sequence[tuple[float, float]] | None, *, can_confirm: bool
) -> tuple[Verdict, bool, tuple[str, ...]]:
    """(verdict, whether pairs have to be run, why)."""
    if not seen.suspicious:
        return Verdict.passed, False, ()
    if not can_confirm:
        return Verdict.failed, False, ("slower than its history two nights in a row, which alone decides here",)
    over = f"slower than its history by the mean of the last {seen.over_nights} night{'s' * (seen.over_nights > 1)}"
    if pairs is None:
        return Verdict.passed, True, (over, "to be confirmed by interleaved pairs")
    found = confirm(pairs)
    said = f"{found.pairs} interleaved pairs: {found.slowdown:+.1%}, at least {found.at_least:+.1%}"
    if found.confirmed:
        return Verdict.failed, False, (over, said)
    return (
        Verdict.passed,
        False,
        (over, said, "the baseline is as slow there: node, driver or neighbours"),
    )


def _as_expected(found: Judgement, expected: Expectation, today: datetime.date | None) -> Judgement:
    expired = today is not None and today > expected.until
    known = f"known: {expected.reason}, until {expected.until.isoformat()}"
    match found.verdict:
        case Verdict.failed if not expired:
            verdict = Verdict.xfail
        case Verdict.failed:
            known = f"{known}, which is over"
            verdict = Verdict.failed
        case Verdict.passed if not found.needs_confirmation:
            verdict = Verdict.xpass
        case _:
            verdict = found.verdict
    return Judgement(
        verdict=verdict,
        reasons=(*found.reasons, known),
        slowdown=found.slowdown,
        smallest=found.smallest,
        needs_confirmation=found.needs_confirmation,
    )


def _stale(baseline: Baseline, night: Night) -> tuple[str, ...]:
    days = (night.date - baseline.last).days if baseline.last else 0
    return (f"the baseline is stale: its last night is {days} days ago",) if days > STALE_DAYS else ()
