"""Corrections of the step-time model out of measured runs, and how far single runs lie from what the others say."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.planning.calibration import LEVELS, UNCALIBRATED, UNCALIBRATED_HALF_WIDTH, Calibration, Spread, group_keys

FEWEST = 2
"""No correction rests on a single run."""
# Variance within a group over variance between groups, in log time (planner: .071 and .133, so 0.29).
_SHRINK = 0.3
_WIDE = 2
"""Levels below this speak for machines that weren't measured: every part of such a group counts the same, however
many runs it has, and the spread is that of whole parts left out."""
_FEWEST_PARTS = 3
_FEWEST_FOR_QUANTILES = 8
_LEAST = 0.02
"""Least half-width of an interval: runs of one configuration repeat no better over software releases."""
_NORMAL_90 = 1.2816
"""90th percentile of the normal distribution in standard deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One measured configuration against the model."""

    kind: str
    """dense or moe."""
    stack: str
    gpu: str
    rate: str
    """Rate class of the linear layers."""
    model: str
    log_ratio: float
    """log(measured / modelled step time)."""
    weight: float = 1.0
    """1 / sqrt(n) for each of n repeats of one configuration."""

    def groups(self) -> tuple[str, ...]:
        """The nested groups it belongs to, widest first."""
        return group_keys(self.kind, self.stack, self.gpu, self.rate, self.model)

    def part(self, level: int) -> str:
        """Its part of the group at a level, what is left out as a whole to judge that level."""
        return (self.stack, self.gpu, self.model)[level]


def log_ratio(measured_s: float, modelled_s: float) -> float:
    """The quantity that is calibrated."""
    return math.log(measured_s / modelled_s)


def fit(
    observations: Sequence[Observation], version: str, *, fewest: int = FEWEST, base: Calibration = UNCALIBRATED
) -> Calibration:
    """Corrections of all groups with at least `fewest` observations, and spreads from leaving whole parts out.

    What `base` says of kinds and software stands, since a few runs on one machine say nothing of others; of a GPU and
    format, or a model on it, the observations decide, shrunk towards the base. Spreads of the base stand where there
    are too few observations for new ones.
    """
    tree = _Tree(observations, base, fewest)
    factors, counts = dict(base.factors), dict(base.counts)
    for keys in {one.groups() for one in observations}:
        for level in range(len(LEVELS)):
            found = tree.factor(keys[: level + 1])
            if found is None:
                break
            factors[keys[level]] = found
            counts[keys[level]] = base.counts.get(keys[level], 0.0) + tree.weight(keys[level])
    return Calibration(version=version, factors=factors, counts=counts, spreads=base.spreads | tree.spreads())


def left_out_error(
    observations: Sequence[Observation], *, fewest: int = FEWEST, base: Calibration = UNCALIBRATED
) -> list[float]:
    """log(measured / predicted) of each observation, predicted from the base and the other observations alone."""
    tree = _Tree(observations, base, fewest)
    return [one.log_ratio - tree.narrowest(one.groups(), [one]) for one in observations]


_Weighted = list[tuple[float, float]]
"""(log ratio, weight) of some observations, in order."""


class _Tree:
    """Observations by group, with what remains of a group when some of them are left out."""

    def __init__(self, observations: Sequence[Observation], base: Calibration, fewest: int) -> None:
        self._observations = observations
        self._base = base
        self._fewest = fewest
        self._groups: dict[str, _Weighted] = defaultdict(list)
        self._parts: dict[str, dict[str, _Weighted]] = defaultdict(lambda: defaultdict(list))
        for one in sorted(observations, key=lambda one: one.log_ratio):
            for level, key in enumerate(one.groups()):
                self._groups[key].append((one.log_ratio, one.weight))
                if level < _WIDE:
                    self._parts[key][one.part(level)].append((one.log_ratio, one.weight))
        self._medians = {
            key: {name: _quantile(found, 0.5) for name, found in parts.items()} for key, parts in self._parts.items()
        }

    def weight(self, key: str) -> float:
        """Weight of the observations of a group."""
        return sum(weight for _, weight in self._groups[key])

    def factor(self, keys: Sequence[str], left_out: Sequence[Observation] = ()) -> float | None:
        """The log factor of the narrowest of `keys` without some of its observations; None where too few remain."""
        parent: float = 0.0
        for level, key in enumerate(keys):
            prior = self._base.factors.get(key)
            if level < _WIDE and prior is not None:
                parent = prior
                continue
            found = self._centre(level, key, left_out)
            if found is None and prior is None:
                return None
            parent = parent if prior is None else prior
            if found is not None:
                value, weight = found
                parent += weight / (weight + _SHRINK) * (value - parent)
        return parent

    def narrowest(self, keys: Sequence[str], left_out: Sequence[Observation]) -> float:
        """The log factor of the narrowest group that has one without some observations; 0 without any."""
        best = 0.0
        for level in range(len(keys)):
            found = self.factor(keys[: level + 1], left_out)
            if found is None:
                break
            best = found
        return best

    def _centre(self, level: int, key: str, left_out: Sequence[Observation]) -> tuple[float, float] | None:
        """(value, weight) of what remains of a group: a median over runs, which a few runs of an old release don't
        move, or over parts of a wide group the mean of theirs."""
        gone = [(one.log_ratio, one.weight) for one in left_out if one.groups()[level] == key]
        if len(self._groups[key]) - len(gone) < self._fewest:
            return None
        if level >= _WIDE:
            rest = _without(self._groups[key], gone)
            return _quantile(rest, 0.5), sum(weight for _, weight in rest)
        medians = dict(self._medians[key])
        for name in {one.part(level) for one in left_out if one.groups()[level] == key}:
            of_part = [(one.log_ratio, one.weight) for one in left_out if one.part(level) == name]
            rest = _without(self._parts[key][name], of_part)
            if rest:
                medians[name] = _quantile(rest, 0.5)
            else:
                del medians[name]
        return sum(medians.values()) / len(medians), float(len(medians))

    def left_out_errors(self, level: int) -> list[tuple[Observation, float]]:
        """log(measured / predicted at `level`) of each observation when its whole part of that group was left out.

        At the last level each observation is left out alone. Those that nothing remains for are not in the list.
        """
        left: dict[object, list[Observation]] = defaultdict(list)
        for index, one in enumerate(self._observations):
            left[(one.groups()[level], one.part(level)) if level < len(LEVELS) - 1 else index].append(one)
        errors: list[tuple[Observation, float]] = []
        for members in left.values():
            factor = self.factor(members[0].groups()[: level + 1], members)
            if factor is not None:
                errors += [(one, one.log_ratio - factor) for one in members]
        return errors

    def spreads(self) -> dict[str, Spread]:
        """Spreads by `kind/level`, and by `kind/stack/level` for software with enough runs."""
        scopes: dict[str, dict[int, list[tuple[Observation, float]]]] = defaultdict(lambda: defaultdict(list))
        for level in range(len(LEVELS)):
            for one, error in self.left_out_errors(level):
                for scope in (one.kind, f"{one.kind}/{one.stack}"):
                    scopes[scope][level].append((one, error))
        spreads: dict[str, Spread] = {}
        for scope, by_level in scopes.items():
            known = {level: spread for level, found in by_level.items() if (spread := _spread(found, level))}
            spreads |= _widening(scope, known) if known else {}
        return spreads


def _without(found: _Weighted, gone: Sequence[tuple[float, float]]) -> _Weighted:
    rest = found.copy()
    for one in gone:
        rest.remove(one)
    return rest


def _spread(found: Sequence[tuple[Observation, float]], level: int) -> Spread | None:
    """Where 80 % of runs lie around predictions that stop at `level`; None where too little was left out to say."""
    if len(found) < _FEWEST_FOR_QUANTILES:
        return None
    if level < _WIDE:
        return _spread_of_parts(found, level)
    ordered = sorted((error, one.weight) for one, error in found)
    low, high = _quantile(ordered, 0.09), _quantile(ordered, 0.91)
    return Spread(low=min(low, -_LEAST), high=max(high, _LEAST), count=len(found))


def _spread_of_parts(found: Sequence[tuple[Observation, float]], level: int) -> Spread | None:
    """From the mean square error of each part that was left out as a whole, every part the same.

    A handful of GPUs has no quantiles of its own: their errors are taken for normal, which covers a GPU that nobody
    measured about as often as it says (docs/validation.md).
    """
    squares: Mapping[str, list[float]] = defaultdict(list)
    for one, error in found:
        squares[one.part(level)].append(error * error)
    if len(squares) < _FEWEST_PARTS:
        return None
    mean = sum(sum(part) / len(part) for part in squares.values()) / len(squares)
    half = max(_LEAST, _NORMAL_90 * math.sqrt(mean))
    return Spread(low=-half, high=half, count=len(found))


def _widening(scope: str, known: Mapping[int, Spread]) -> dict[str, Spread]:
    """A wider group never promises more than a narrower one; a level without data takes the next wider's."""
    half = UNCALIBRATED_HALF_WIDTH[scope.split("/")[0]]
    one, filled = Spread(low=-half, high=half, count=0), []
    for level in range(len(LEVELS)):
        one = known.get(level, one)
        filled.append(one)
    for level in reversed(range(len(LEVELS) - 1)):
        wide, narrow = filled[level], filled[level + 1]
        filled[level] = Spread(low=min(wide.low, narrow.low), high=max(wide.high, narrow.high), count=wide.count)
    return {f"{scope}/{level}": found for level, found in enumerate(filled)}


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Value below which `share` of the weight lies."""
    total, seen = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        seen += weight
        if seen >= share * total:
            return value
    return weighted[-1][0]
