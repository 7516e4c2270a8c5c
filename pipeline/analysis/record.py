"""What came of a run, computed from its configuration, its plan and what its journals say."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.identity import DIGITS, configuration_digest
from pipeline.planning.outcome import outcomes
from pipeline.rundir import to_jsonable
from pipeline.types import End, Experiment, Measured, Plan, RankMemory, RunRecord, RunState

WARM_UP_STEPS = 3
"""Fewest steps at the start of an attempt that say nothing about the rest: they compile and allocate."""
LONG_WARM_UP_STEPS = 10
"""The same in attempts that are long enough to spare them."""
_SPARES = 3 * LONG_WARM_UP_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFacts:
    """What the journals of one attempt say."""

    step_s: Mapping[int, float] = field(default_factory=dict)
    """Seconds of each step, the first report of a step."""
    memory: Mapping[int, RankMemory] = field(default_factory=dict)
    """Highest use of each rank's GPU."""
    binding_flags: tuple[str, ...] = ()
    misplaced_ranks: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def build_record(
    *,
    run_id: str,
    experiment: Experiment,
    plan: Plan,
    attempts: Sequence[AttemptFacts],
    end: End | None,
    journal_bytes: int,
) -> RunRecord:
    """The record of a run; `end` is that of the newest attempt, None while nobody knows it."""
    measured = measure(attempts, plan.tokens_per_step)
    newest = attempts[-1] if attempts else AttemptFacts()
    return RunRecord(
        run_id=run_id,
        name=experiment.name,
        config_hash=configuration_digest(to_jsonable(experiment)),
        plan_hash=plan_hash(plan),
        calibration=plan.throughput.calibration if plan.throughput else "none",
        level=plan.throughput.level if plan.throughput else "",
        model=experiment.model.name,
        precision=experiment.precision.name,
        hardware=experiment.hardware.name,
        nodes=plan.layout.nodes,
        ranks=plan.layout.ranks,
        state=end.state if end else RunState.unknown,
        message=end.message if end else "",
        attempts=len(attempts),
        measured=measured,
        outcomes=outcomes(
            plan, step_s=measured.step_s, peak_gib=max((use.allocated_gib for use in measured.memory), default=None)
        ),
        binding_flags=newest.binding_flags,
        misplaced_ranks=newest.misplaced_ranks,
        versions=dict(newest.versions),
        journal_bytes=journal_bytes,
    )


def plan_hash(plan: Plan) -> str:
    """What two runs share whose ranks do the same: of the layout alone."""
    return hashlib.sha256(json.dumps(to_jsonable(plan.layout), sort_keys=True).encode()).hexdigest()[:DIGITS]


def measure(attempts: Sequence[AttemptFacts], tokens_per_step: int) -> Measured:
    """Speed over the steady steps of all attempts, memory as the highest of each rank; a repeated step counts once."""
    seen: dict[int, float] = {}
    steady: dict[int, float] = {}
    memory: dict[int, RankMemory] = {}
    for attempt in attempts:
        seen = {**attempt.step_s, **seen}
        steady = {**_steady(attempt.step_s), **steady}
        for rank, use in attempt.memory.items():
            memory[rank] = highest(memory.get(rank), use)
    median = statistics.median(steady.values()) if steady else None
    return Measured(
        steps=len(seen),
        steady_steps=len(steady),
        step_s=median,
        step_spread_s=statistics.median(abs(one - median) for one in steady.values()) if median is not None else None,
        tokens_per_s=tokens_per_step / median if median else None,
        memory=tuple(memory[rank] for rank in sorted(memory)),
    )


def highest(first: RankMemory | None, second: RankMemory) -> RankMemory:
    """The larger use of two reports of one rank."""
    if first is None:
        return second
    return RankMemory(
        rank=second.rank,
        allocated_gib=max(first.allocated_gib, second.allocated_gib),
        reserved_gib=max(first.reserved_gib, second.reserved_gib),
    )


def _steady(step_s: Mapping[int, float]) -> dict[int, float]:
    """Steps behind the warm-up of one attempt."""
    ordered = sorted(step_s)
    return {step: step_s[step] for step in ordered[LONG_WARM_UP_STEPS if len(ordered) >= _SPARES else WARM_UP_STEPS :]}
