"""What came of a run, in one file: what it was, what was predicted, what was measured, how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.types.plan import Interval
from pipeline.types.run import RunState

_DRIFT_WIDTHS = 2.0
"""How many half-widths of the interval off means a fault of software or node, not noise (about three sigma)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Highest use of one rank's GPU by torch's allocator, GiB."""

    rank: int
    allocated_gib: float
    reserved_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the journals say about speed and memory."""

    steps: int
    """Optimizer steps that were journaled, each counted once."""
    steady_steps: int
    """Steps left once the first ones of each attempt, which compile and allocate, are taken away."""
    step_s: float | None = None
    """Median of the steady steps; None without any."""
    step_spread_s: float | None = None
    """Median distance from that median."""
    tokens_per_s: float | None = None
    """Of the whole job, at the median step."""
    memory: tuple[RankMemory, ...] = ()
    """By rank; empty where no rank computes on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One quantity of a finished run beside its prediction."""

    name: str
    predicted: Interval
    measured: float
    unit: str

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.p50 / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.predicted.p10 <= self.measured <= self.predicted.p90

    @property
    def drifted(self) -> bool:
        """Whether it lies so far off that the run deserves a look before a calibration learns from it."""
        half = math.log(self.predicted.p90 / self.predicted.p10) / 2
        return abs(math.log(self.measured / self.predicted.p50)) > _DRIFT_WIDTHS * max(half, 1e-6)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as one line of a table; everything in it can be made again from the other files of the run."""

    run_id: str
    name: str
    config_hash: str
    """`pipeline.identity.configuration_digest`: of the configuration without what doesn't change the training."""
    plan_hash: str
    """Of the layout: who does what."""
    calibration: str
    """Version of the calibration that the predictions rest on."""
    level: str
    """Level of that calibration."""
    model: str
    precision: str
    hardware: str
    nodes: int
    ranks: int
    state: RunState
    message: str
    attempts: int
    measured: Measured
    outcomes: tuple[Outcome, ...]
    """Predicted beside measured, where there are both."""
    binding_flags: tuple[str, ...]
    """Of all nodes of the newest attempt."""
    misplaced_ranks: tuple[int, ...]
    """Ranks that were not where they had been put."""
    versions: dict[str, str]
    """Of what it was computed with, by name."""
    journal_bytes: int
    """Size of the journals it was made from: when they have grown since, it is made again."""
