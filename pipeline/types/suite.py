"""What is run every night and what it is guarded against."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class KnownFailure:
    """A failure that is known and waits to be repaired."""

    reason: str
    until: str
    """Last day it is expected, YYYY-MM-DD; afterwards it fails again."""


@dataclass(kw_only=True, slots=True)
class Tolerance:
    """How far a curve may be from its golden one."""

    relative: float = 0.0
    """Largest relative difference of a step; 0 compares bit by bit."""
    steps_outside: float = 0.0
    """Share of steps that may lie outside."""


@dataclass(kw_only=True, slots=True)
class Case:
    """One experiment of a suite."""

    name: str
    overrides: list[str]
    """The request, as typed after `himori submit`."""
    repeats: int = 3
    guard: float = 0.03
    """Slowdown that has to be seen; where noise hides it the verdict is NOT_POWERED."""
    curves: dict[str, Tolerance] = field(default_factory=dict)
    """Curves that have to repeat, by key; empty: none is looked at."""
    known_failure: KnownFailure | None = None


@dataclass(kw_only=True, slots=True)
class Suite:
    """Everything that runs in a night."""

    name: str
    cases: list[Case]
    description: str = ""
    deadline_min: float = 600.0
    """What has not ended so long after the night began is NOT_RUN."""
    pairs: int = 3
    """Interleaved pairs that confirm a suspicion; 0: the history has the last word."""
