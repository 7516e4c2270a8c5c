"""Runs that repeat one another, with the mean of each group and its interval (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from pipeline.analysis.estimate import FEWEST_RUNS, PRIOR_SIGMA
from pipeline.analysis.facts import RunFacts, recipe_hash
from pipeline.analysis.roles import BLOCKS, BY_KEY

_ALIKE = ("gpu", "platform", "gpus", "layout", "micro_batch", "techniques", "software", "code", "binding")
_SHORT = 30
_UNREADABLE = {"model_shape"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over runs with its 95 % interval."""

    mean: float
    low: float
    high: float
    runs: int
    assumed: bool
    """Whether too few runs left the spread to an assumption."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Repeats of one thing."""

    mark: str
    """A letter or number that stands for it where there is no room for the label."""
    label: str
    runs: tuple[RunFacts, ...]

    @property
    def short(self) -> str:
        """The label where it is short, else the mark."""
        return self.label if len(self.label) <= _SHORT else f"group {self.mark}"

    def rate(self) -> Estimate | None:
        """tokens/s/GPU."""
        return estimate([run.tokens_per_s_per_gpu for run in self.runs])

    def cost(self) -> Estimate | None:
        """Currency units a million tokens."""
        return estimate([run.cost_per_token and run.cost_per_token * 1e6 for run in self.runs])

    @property
    def gpus(self) -> int:
        """GPUs of one run."""
        return self.runs[0].gpus


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Geometric mean and interval over runs; None without a value."""
    logs = [math.log(value) for value in values if value]
    if not logs:
        return None
    few = len(logs) < FEWEST_RUNS
    spread = max(PRIOR_SIGMA, statistics.stdev(logs) if len(logs) > 1 else 0.0) if few else statistics.stdev(logs)
    quantile = 1.96 if few else float(student.ppf(0.975, len(logs) - 1))
    center, half = statistics.fmean(logs), quantile * spread / math.sqrt(len(logs))
    return Estimate(
        mean=math.exp(center), low=math.exp(center - half), high=math.exp(center + half), runs=len(logs), assumed=few
    )


def grouped(runs: Sequence[RunFacts]) -> list[Group]:
    """Runs of one recipe, place and code together, named by what tells the groups apart."""
    found: dict[tuple[str, ...], list[RunFacts]] = {}
    for run in runs:
        key = (recipe_hash(run, BLOCKS), *(str(run.factors.get(one)) for one in _ALIKE))
        found.setdefault(key, []).append(run)
    groups = list(found.values())
    apart = [key for key in dict.fromkeys((*BLOCKS, *_ALIKE)) if key not in _UNREADABLE and _tells_apart(groups, key)]
    return [
        Group(mark=str(number), label=_label(groups, members, apart), runs=tuple(members))
        for number, members in enumerate(groups, 1)
    ]


def _tells_apart(groups: Sequence[Sequence[RunFacts]], key: str) -> bool:
    return len({str(members[0].factors.get(key)) for members in groups}) > 1


def _label(groups: Sequence[Sequence[RunFacts]], members: Sequence[RunFacts], apart: Sequence[str]) -> str:
    """What tells a group apart: of a long value only the words that are not in the value of every group."""
    parts = []
    for key in apart:
        values = [str(other[0].factors.get(key, "unknown")).split() for other in groups]
        common = set(values[0]).intersection(*values)
        words = [word for word in str(members[0].factors.get(key, "unknown")).split() if word not in common]
        parts.append(f"{BY_KEY[key].title} {' '.join(words)}".strip())
    return ", ".join(parts) or str(members[0].config.get("name", members[0].name))
