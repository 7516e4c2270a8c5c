"""What measured runs say about the step-time model: corrections by group, and how far single runs lie from them.

Observed and modelled step times differ by a factor that depends on software, GPU and number format. Its logarithm is
estimated group by group, each shrunk towards the wider one it belongs to, so that no correction rests on one run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.planning.job import Job
from pipeline.planning.steptime import rate_class

DEFAULT_STACK = "megatron-te"
"""Megatron-Core with Transformer Engine, as tuned recipes run it."""
LEVELS = ("kind", "software", "gpu and format", "model")
"""Names of the nested groups, widest first."""
# Variance within a group over variance between groups, in log time (planner: .071 and .133, so 0.29).
_SHRINK = 0.3
_FEWEST_FOR_QUANTILES = 8
_LEAST = 0.02
"""Least half-width of an interval: runs of one configuration repeat no better over software releases."""
_UNCALIBRATED = {"dense": 0.27, "moe": 0.55}
"""Half-width of the 80 % interval, in log time, where nothing was measured (planner, 4.4)."""


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


def group_keys(kind: str, stack: str, gpu: str, rate: str, model: str) -> tuple[str, ...]:
    """Keys of the nested groups, widest first: one for each of LEVELS."""
    machine = f"{kind}/{stack}/{gpu}/{rate}"
    return kind, f"{kind}/{stack}", machine, f"{machine}/{model}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Quantiles of log(measured / predicted step time) when prediction had to stop at some level."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """What a calibration says about one job."""

    log_factor: float
    """Added to the logarithm of the modelled step time."""
    low: float
    high: float
    """Offsets from it: 80 % of runs lie between."""
    level: str
    count: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Corrections of all groups, with the version plans name."""

    version: str
    factors: dict[str, float]
    """log factor by group key."""
    counts: dict[str, float]
    """Weight of the observations behind it."""
    spreads: dict[str, Spread]
    """By `kind/level` and `kind/stack/level`."""

    def correct(self, job: Job, stack: str = DEFAULT_STACK) -> Correction:
        """The correction of the narrowest group that was measured, and the spread seen at that level."""
        kind = "moe" if job.model.moe else "dense"
        keys = group_keys(kind, stack, job.gpu.name, rate_class(job), job.model.name)
        level, key = _narrowest(keys, self.factors)
        spread = self.spread(kind, stack, level)
        return Correction(
            log_factor=self.factors.get(key, 0.0),
            low=spread.low,
            high=spread.high,
            level=f"{LEVELS[level]} ({key})" if level >= 0 else "none: priors only",
            count=self.counts.get(key, 0.0),
        )

    def spread(self, kind: str, stack: str, level: int) -> Spread:
        """Spread of runs around predictions that had to stop at `level`: of this software, else of all."""
        half = _UNCALIBRATED[kind]
        found = self.spreads.get(f"{kind}/{stack}/{level}") or self.spreads.get(f"{kind}/{level}")
        return found or Spread(low=-half, high=half, count=0)


UNCALIBRATED = Calibration(version="none", factors={}, counts={}, spreads={})


def _narrowest(keys: Sequence[str], factors: dict[str, float]) -> tuple[int, str]:
    level = -1
    for index, key in enumerate(keys):
        if key not in factors:
            break
        level = index
    return level, keys[level] if level >= 0 else ""


# --------------------------------------------------------------------------- fitting


def fit(observations: Sequence[Observation], version: str, *, fewest: int = 1) -> Calibration:
    """Corrections of all groups with at least `fewest` observations, and spreads from leaving whole groups out."""
    factors, counts = _factors(observations, fewest)
    return Calibration(version=version, factors=factors, counts=counts, spreads=_spreads(observations))


_Weighted = list[tuple[float, float]]
"""(log ratio, weight) of some observations, in order."""


def _by_group(observations: Iterable[Observation]) -> dict[str, _Weighted]:
    groups: dict[str, _Weighted] = defaultdict(list)
    for one in sorted(observations, key=lambda one: one.log_ratio):
        for key in one.groups():
            groups[key].append((one.log_ratio, one.weight))
    return groups


def _shrunk(found: _Weighted, parent: float) -> float:
    """The weighted median, which a few runs of an old release don't move, drawn towards the wider group."""
    weight = sum(one for _, one in found)
    return parent + weight / (weight + _SHRINK) * (_quantile(found, 0.5) - parent)


def _factors(observations: Sequence[Observation], fewest: int) -> tuple[dict[str, float], dict[str, float]]:
    groups = _by_group(observations)
    factors: dict[str, float] = {}
    for keys in {one.groups() for one in observations}:
        parent = 0.0
        for key in keys:
            if len(groups[key]) >= fewest:
                parent = factors[key] = _shrunk(groups[key], parent)
    return factors, {key: sum(weight for _, weight in groups[key]) for key in factors}


def left_out_errors(observations: Sequence[Observation], level: int) -> list[tuple[Observation, float]]:
    """log(measured / predicted) of each observation when its whole group at `level` + 1 was left out of the fit.

    At the last level each observation is left out alone. Observations that nothing remains for at `level` are not
    in the list.
    """
    groups = _by_group(observations)
    left: dict[object, list[Observation]] = defaultdict(list)
    for index, one in enumerate(observations):
        left[one.groups()[level + 1] if level + 1 < len(LEVELS) else index].append(one)
    errors: list[tuple[Observation, float]] = []
    for members in left.values():
        factor = _without(members, groups, level)
        if factor is not None:
            errors += [(one, one.log_ratio - factor) for one in members]
    return errors


def _without(members: Sequence[Observation], groups: dict[str, _Weighted], level: int) -> float | None:
    """The factor at `level` of what remains without `members`, which share all groups up to there."""
    factor = 0.0
    for key in members[0].groups()[: level + 1]:
        if len(groups[key]) == len(members):
            return None
        rest = groups[key].copy()
        for one in members:
            rest.remove((one.log_ratio, one.weight))
        factor = _shrunk(rest, factor)
    return factor


def _spreads(observations: Sequence[Observation]) -> dict[str, Spread]:
    """Spreads by `kind/level`, and by `kind/stack/level` for software with enough runs."""
    scopes: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for level in range(len(LEVELS)):
        for one, error in left_out_errors(observations, level):
            for scope in (one.kind, f"{one.kind}/{one.stack}"):
                scopes[scope][level].append((error, one.weight))
    spreads: dict[str, Spread] = {}
    for scope, by_level in scopes.items():
        enough = {level: found for level, found in by_level.items() if len(found) >= _FEWEST_FOR_QUANTILES}
        if enough:
            spreads |= _widening(scope, {level: _spread(found) for level, found in enough.items()})
    return spreads


def _spread(found: list[tuple[float, float]]) -> Spread:
    ordered = sorted(found)
    low, high = _quantile(ordered, 0.09), _quantile(ordered, 0.91)
    return Spread(low=min(low, -_LEAST), high=max(high, _LEAST), count=len(found))


def _widening(scope: str, known: dict[int, Spread]) -> dict[str, Spread]:
    """A wider group never promises more than a narrower one; a level without data takes the next wider's."""
    half = _UNCALIBRATED[scope.split("/")[0]]
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


# --------------------------------------------------------------------------- as a document


def to_document(calibration: Calibration) -> dict[str, object]:
    """Plain data for a file."""
    return {
        "version": calibration.version,
        "groups": {
            key: {"log_factor": round(value, 4), "weight": round(calibration.counts[key], 2)}
            for key, value in sorted(calibration.factors.items())
        },
        "spreads": {
            key: {"low": round(one.low, 4), "high": round(one.high, 4), "count": one.count}
            for key, one in sorted(calibration.spreads.items())
        },
    }


def from_document(document: dict[str, dict[str, dict[str, float]]]) -> Calibration:
    """A calibration from what `to_document` made of it."""
    groups, spreads = document["groups"], document["spreads"]
    return Calibration(
        version=str(document["version"]),
        factors={key: float(one["log_factor"]) for key, one in groups.items()},
        counts={key: float(one["weight"]) for key, one in groups.items()},
        spreads={
            key: Spread(low=float(one["low"]), high=float(one["high"]), count=int(one["count"]))
            for key, one in spreads.items()
        },
    )


def log_ratio(measured_s: float, modelled_s: float) -> float:
    """The quantity that is calibrated."""
    return math.log(measured_s / modelled_s)
