"""Several runs of one question: what is varied, and the points that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pipeline.types.experiment import Experiment


@dataclass(kw_only=True, slots=True)
class Published:
    """What somebody else published about a point, to be shown beside its plan."""

    where: list[str]
    """Conditions that tell which points it is about, as in `SweepSpec.where`."""
    says: str
    """In few words, with its unit."""
    source: str
    differs: list[str] = field(default_factory=list)
    """What its set-up has that a plan here doesn't: why the two can't be equal."""


@dataclass(kw_only=True, slots=True)
class SweepSpec:
    """What a sweep varies; an experiment may carry one, the command line adds to it."""

    over: list[str] = field(default_factory=list)
    """Overrides of several values each, in Hydra's grammar; one typed for the same key stands before it."""
    zip: list[list[str]] = field(default_factory=list)
    """Keys that advance together: `[[hardware, nodes]]` pairs the first with the first, the second with the second."""
    where: list[str] = field(default_factory=list)
    """Conditions that a point has to meet, as expressions over its configuration: `layout.tp <= 8`."""
    published: list[Published] = field(default_factory=list)
    """Figures of others that `plan -m` shows beside the points they are about."""


class SweeperKind(Enum):
    """How the points of a sweep are chosen."""

    grid = "grid"
    """All combinations."""
    optuna = "optuna"
    """One after another, from what came of those before."""


@dataclass(kw_only=True, slots=True)
class SweeperSpec:
    """How the points of a sweep are chosen; all but `kind` is for a search only."""

    name: str = "grid"
    kind: SweeperKind = SweeperKind.grid
    trials: int = 20
    parallel: int = 2
    """Trials that wait or run at the same time."""
    metric: str = "train/loss"
    """Its newest value is what a trial is judged by; the smallest is best."""
    startup_trials: int = 5
    """Trials drawn at random before the estimator is asked."""
    seed: int = 0
    prune: bool = True
    """Stop trials that are not among the best third at a rung of steps."""
    prune_first_step: int = 100
    """The first rung; each further one has three times the steps."""


@dataclass(kw_only=True, slots=True)
class Root(Experiment):
    """What a configuration composes to: an experiment, and which points are made of it."""

    sweep: SweepSpec = field(default_factory=SweepSpec)
    sweeper: SweeperSpec = field(default_factory=SweeperSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One run of a sweep, decided but not planned."""

    number: int
    """Its place in the product of all values, from 1."""
    choices: dict[str, str]
    """What distinguishes it: a value, as typed, for each key that varies."""
    experiment: Experiment
    published: tuple[Published, ...] = ()
    """What others published about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedPoint:
    """A point that is not run."""

    number: int
    choices: dict[str, str]
    reason: str
