"""Several runs of one question: what is varied, and the points that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(kw_only=True, slots=True)
class Root(Experiment):
    """What a configuration composes to: an experiment, and which points are made of it."""

    sweep: SweepSpec = field(default_factory=SweepSpec)


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
