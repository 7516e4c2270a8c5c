"""Statistics of a performance series: what is usual, what is suspicious, and what two codes side by side show (pure).

Values are step times, or anything else of which more is worse and ratios matter; they are compared as logarithms. A
night's value is the median of its valid repeats, the night is the unit. What the screen suspects is measured again as
interleaved pairs of baseline and candidate on one allocation, which takes night and node out.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import norm
from scipy.stats import t as student

FEWEST_NIGHTS = 5
"""Nights a history needs before anything is judged by it."""
WINDOW_NIGHTS = 30
"""Nights that count: what was longer ago had other neighbours."""
SCREEN_LEVEL = 0.03
"""Share of nights without a change that each screen (over one, two and three nights) sends to confirmation."""
ALONE_LEVEL = 0.02
"""Where nothing can be confirmed: share of quiet nights beyond the bound, which two nights in a row have to pass."""
LOOK_BACK = (1, 2, 3)
CONFIRM_LEVEL = 0.01
LEAST_EFFECT = 0.01
"""A confirmed difference below this is not a regression, however certain."""
POWER = 0.95
NIGHTS_TO_SEE = 3
_PRIOR_SIGMA = 0.01
_PRIOR_FREEDOM = 3.0
"""Weight of the prior: so many nights' worth."""
_NODE_SHRINK = 2.0
_PAIR_SIGMA, _PAIR_FREEDOM = 0.006, 10.0
"""Standard deviation of one pair's difference (two runs of 0.4 % each), and what that is worth in pairs."""
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """One run of a series."""

    value: float
    """Above 0; more is worse."""
    nodes: tuple[str, ...] = ()
    invalid: str = ""
    """Why it must not count; empty when it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """All repeats of a series in one night."""

    date: datetime.date
    repeats: tuple[Repeat, ...]
    commit: str = ""

    @property
    def valid(self) -> tuple[Repeat, ...]:
        """Repeats that count."""
        return tuple(one for one in self.repeats if not one.invalid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What is normal for a series, from its history."""

    center: float
    """log of the usual value."""
    sigma: float
    """Standard deviation between nights, log units."""
    freedom: float
    nights: int
    nodes: Mapping[str, float] = field(default_factory=dict)
    """How much slower than usual each node is, log units, shrunk to 0."""
    last: datetime.date | None = None

    def expected(self, night: Night) -> float:
        """log of the value to be expected on the nodes of a night."""
        return self.center + _node_offset(self.nodes, night)


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """What the history says about the newest night."""

    slowdown: float
    """This night over what was expected, minus 1."""
    suspicious: bool
    over_nights: int
    """How many nights' mean gave it away; 0 when none did."""
    smallest: float
    """Slowdown that would be seen within `NIGHTS_TO_SEE` nights with probability `POWER`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """Baseline and candidate side by side."""

    slowdown: float
    at_least: float
    """One-sided 99 % bound."""
    pairs: int
    confirmed: bool


def baseline_of(history: Sequence[Night]) -> Baseline | None:
    """What is normal, from the nights since the baseline was set; None when there are too few that count."""
    nights = [night for night in history if night.valid][-WINDOW_NIGHTS:]
    if len(nights) < FEWEST_NIGHTS:
        return None
    nodes: dict[str, float] = {}
    center = 0.0
    for _ in range(2):
        levels = [_level(night) - _node_offset(nodes, night) for night in nights]
        center = statistics.median(levels)
        nodes = _node_offsets(nights, center)
    spread = _robust_sigma([_level(night) - _node_offset(nodes, night) - center for night in nights])
    freedom = _PRIOR_FREEDOM + len(nights) - 1
    variance = (_PRIOR_FREEDOM * _PRIOR_SIGMA**2 + (len(nights) - 1) * spread**2) / freedom
    return Baseline(
        center=center,
        sigma=math.sqrt(variance),
        freedom=freedom,
        nights=len(nights),
        nodes=nodes,
        last=nights[-1].date,
    )


def screen(baseline: Baseline, recent: Sequence[Night]) -> Screening:
    """Looks at the newest night, and at the means over the last two and three, newest last."""
    counted = [night for night in recent if night.valid]
    excess = [_level(night) - baseline.expected(night) for night in counted]
    quantile = float(student.ppf(1 - SCREEN_LEVEL, baseline.freedom))
    seen = 0
    for nights in LOOK_BACK:
        if nights <= len(excess) and statistics.fmean(excess[-nights:]) > quantile * _sigma_of_mean(baseline, nights):
            seen = nights
            break
    return Screening(
        slowdown=math.expm1(excess[-1]),
        suspicious=seen > 0,
        over_nights=seen,
        smallest=smallest_detectable(baseline),
    )


def screen_alone(baseline: Baseline, recent: Sequence[Night]) -> Screening:
    """The same where the history has the last word: one bad night is forgiven, two in a row are not."""
    excess = [_level(night) - baseline.expected(night) for night in recent if night.valid]
    bound = float(student.ppf(1 - ALONE_LEVEL, baseline.freedom)) * _sigma_of_mean(baseline, 1)
    twice = len(excess) > 1 and min(excess[-2:]) > bound
    # Two of three nights in a row see it with probability p^2 (2 - p): 0.95 at p = 0.952.
    return Screening(
        slowdown=math.expm1(excess[-1]),
        suspicious=twice,
        over_nights=2 * twice,
        smallest=max(math.expm1(bound + float(norm.ppf(0.952)) * _sigma_of_mean(baseline, 1)), LEAST_EFFECT),
    )


def smallest_detectable(baseline: Baseline) -> float:
    """Slowdown seen within `NIGHTS_TO_SEE` nights with probability `POWER`: by one night of three, or by their mean."""
    quantile = float(student.ppf(1 - SCREEN_LEVEL, baseline.freedom))
    miss_once = (1 - POWER) ** (1 / NIGHTS_TO_SEE)
    by_one = (quantile - float(norm.ppf(miss_once))) * _sigma_of_mean(baseline, 1)
    by_mean = (quantile + float(norm.ppf(POWER))) * _sigma_of_mean(baseline, NIGHTS_TO_SEE)
    return max(math.expm1(min(by_one, by_mean)), LEAST_EFFECT)


def confirm(pairs: Sequence[tuple[float, float]]) -> Confirmation:
    """Judges interleaved (baseline, candidate) values of one allocation.

    The spread of pairs is pooled with what two runs of 0.4 % each make, so that three lucky pairs prove nothing.
    """
    differences = [math.log(candidate / base) for base, candidate in pairs]
    mean = statistics.fmean(differences)
    freedom = _PAIR_FREEDOM + len(differences) - 1
    squares = sum((one - mean) ** 2 for one in differences)
    error = math.sqrt((_PAIR_FREEDOM * _PAIR_SIGMA**2 + squares) / freedom / len(differences))
    bound = mean - float(student.ppf(1 - CONFIRM_LEVEL, freedom)) * error
    return Confirmation(
        slowdown=math.expm1(mean),
        at_least=math.expm1(bound),
        pairs=len(differences),
        confirmed=bound > 0 and math.expm1(mean) > LEAST_EFFECT,
    )


def _level(night: Night) -> float:
    return math.log(statistics.median(one.value for one in night.valid))


def _node_offset(nodes: Mapping[str, float], night: Night) -> float:
    known = [nodes.get(node, 0.0) for one in night.valid for node in one.nodes]
    return statistics.fmean(known) if known else 0.0


def _node_offsets(nights: Sequence[Night], center: float) -> dict[str, float]:
    """Mean excess of the repeats that ran on each node, shrunk so that one slow night doesn't condemn a node."""
    excess: dict[str, list[float]] = {}
    for night in nights:
        for one in night.valid:
            for node in one.nodes:
                excess.setdefault(node, []).append(math.log(one.value) - center)
    if len(excess) < 2:
        return {}
    return {node: sum(found) / (len(found) + _NODE_SHRINK) for node, found in excess.items()}


def _robust_sigma(residuals: Sequence[float]) -> float:
    """From the median absolute deviation, so that a few bad nights don't blind the screen."""
    return _MAD_TO_SIGMA * statistics.median(abs(one) for one in residuals)


def _sigma_of_mean(baseline: Baseline, nights: int) -> float:
    """Standard deviation of the mean of so many nights about the centre, whose own error is that of a median."""
    return baseline.sigma * math.sqrt(1 / nights + math.pi / 2 / baseline.nights)
