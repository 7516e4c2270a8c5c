"""Where a series changed its level: binary segmentation, each break held to a permutation test (pure).

The statistic is the largest standardised difference of means on both sides of a break; its null distribution comes
from permutations of the segment itself, so outliers and odd noise widen it as they should (compare E-divisive,
Matteson and James 2014, which tests breaks the same way). The random numbers are seeded: one series has one answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_NIGHTS = 3
"""Points a segment needs."""
LEVEL = 0.001
_PERMUTATIONS = 1999
_Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A break in a series."""

    index: int
    """First point of the new level."""
    before: float
    """Geometric mean of the segment before it."""
    after: float
    p_value: float

    @property
    def ratio(self) -> float:
        """Level after over level before."""
        return self.after / self.before


def change_points(values: Sequence[float], *, least_ratio: float = 0.01, level: float = LEVEL) -> list[Change]:
    """Breaks in a series of positive values, in order; smaller ones than `least_ratio` are not worth a word."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    generator = np.random.default_rng(0)
    places = sorted(_breaks(logs, 0, level, generator))
    edges = [0, *(place for place, _ in places), len(logs)]
    found = [
        Change(
            index=place,
            before=_level(logs[edges[number] : place]),
            after=_level(logs[place : edges[number + 2]]),
            p_value=p_value,
        )
        for number, (place, p_value) in enumerate(places)
    ]
    return [one for one in found if abs(math.log(one.ratio)) >= math.log1p(least_ratio)]


def _level(logs: _Values) -> float:
    return float(np.exp(np.median(logs)))


def _breaks(logs: _Values, start: int, level: float, generator: np.random.Generator) -> Iterator[tuple[int, float]]:
    if len(logs) < 2 * LEAST_NIGHTS:
        return
    statistic, place = _strongest(logs)
    shuffled = generator.permuted(np.tile(logs, (_PERMUTATIONS, 1)), axis=1)
    p_value = (1 + int(np.sum(_statistics(shuffled).max(axis=1) >= statistic))) / (_PERMUTATIONS + 1)
    if p_value > level:
        return
    yield start + place, p_value
    yield from _breaks(logs[:place], start, level, generator)
    yield from _breaks(logs[place:], start + place, level, generator)


def _strongest(logs: _Values) -> tuple[float, int]:
    statistics = _statistics(logs[None, :])[0]
    best = int(statistics.argmax())
    return float(statistics[best]), best + LEAST_NIGHTS


def _statistics(rows: _Values) -> _Values:
    """For each row, |mean after - mean before| * sqrt(n1 n2 / n) at each possible break."""
    count = rows.shape[1]
    sizes = np.arange(1, count, dtype=np.float64)
    before = np.cumsum(rows, axis=1)[:, :-1]
    total = rows.sum(axis=1, keepdims=True)
    gaps = np.abs((total - before) / (count - sizes) - before / sizes) * np.sqrt(sizes * (count - sizes) / count)
    found: _Values = gaps[:, LEAST_NIGHTS - 1 : count - LEAST_NIGHTS]
    return found
