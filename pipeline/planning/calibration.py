"""What measured runs say about the step-time model: corrections by group, and how far single runs lie from them.

Observed and modelled step times differ by a factor that depends on software, GPU and number format. Its logarithm is
kept group by group; `fitting` estimates it, each group shrunk towards the wider one it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planning.job import Job
from pipeline.planning.steptime import rate_class

DEFAULT_STACK = "megatron-te"
"""Megatron-Core with Transformer Engine, as tuned recipes run it."""
LEVELS = ("kind", "software", "gpu and format", "model")
"""Names of the nested groups, widest first."""
UNCALIBRATED_HALF_WIDTH = {"dense": 0.27, "moe": 0.55}
"""Half-width of the 80 % interval, in log time, where nothing was measured (planner, 4.4)."""


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

    def factor(self, keys: Sequence[str]) -> float:
        """The log factor of the narrowest of nested groups that has one; 0 without any."""
        return self.factors.get(_narrowest(keys, self.factors)[1], 0.0)

    def spread(self, kind: str, stack: str, level: int) -> Spread:
        """Spread of runs around predictions that had to stop at `level`: of this software, else of all."""
        half = UNCALIBRATED_HALF_WIDTH[kind]
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
