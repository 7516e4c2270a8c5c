"""What finished runs teach the planner: which of them can be used, why the others can't, and a report of the fit."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.planning.calibration import UNCALIBRATED, Calibration
from pipeline.planning.fitting import FEWEST, Observation, left_out_error
from pipeline.planning.outcome import observation
from pipeline.types import Experiment, Plan, RunRecord, RunState

UNUSABLE_STATES = frozenset({RunState.prepared, RunState.held, RunState.queued, RunState.running})


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """One run as a calibration sees it."""

    record: RunRecord
    experiment: Experiment
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What one run says, or why it says nothing."""

    run_id: str
    observation: Observation | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitness:
    """Errors of the step time over the runs used, each predicted without itself; relative, 0.05 is 5 %."""

    runs: int
    groups: tuple[str, ...]
    """GPU, format and model of the groups that got a correction of their own from these runs."""
    uncalibrated: float
    """Median absolute error with no calibration."""
    base: float
    """The same with the calibration that was refined."""
    left_out: float
    """The same with the new one, each run predicted from the others."""
    left_out_p90: float


def lessons(runs: Sequence[Finished], *, min_steps: int, keep_drifted: bool = False) -> list[Lesson]:
    """One lesson a run; n repeats of one configuration and layout weigh 1/sqrt(n) each."""
    found = [_lesson(run, min_steps=min_steps, keep_drifted=keep_drifted) for run in runs]
    same = {run.record.run_id: (run.record.config_hash, run.record.plan_hash) for run in runs}
    repeats = Counter(same[one.run_id] for one in found if one.observation)
    return [
        replace(one, observation=replace(one.observation, weight=1 / math.sqrt(repeats[same[one.run_id]])))
        if one.observation
        else one
        for one in found
    ]


def _lesson(run: Finished, *, min_steps: int, keep_drifted: bool) -> Lesson:
    record, measured = run.record, run.record.measured
    why_not = ""
    if record.state in UNUSABLE_STATES:
        why_not = f"is {record.state.value}"
    elif run.plan.throughput is None:
        why_not = f"its plan has no estimate of speed (hardware {record.hardware}, precision {record.precision})"
    elif measured.step_s is None or measured.steady_steps < min_steps:
        why_not = f"{measured.steady_steps} steady steps, at least {min_steps} are needed"
    elif record.misplaced_ranks:
        why_not = f"ranks {', '.join(map(str, record.misplaced_ranks))} were not where they had been put"
    elif not keep_drifted and any(one.drifted for one in record.outcomes if one.name == "step time"):
        why_not = "far off its prediction: software or node need a look first; --keep-drifted learns from it"
    if why_not or measured.step_s is None:
        return Lesson(run_id=record.run_id, observation=None, why_not=why_not)
    return Lesson(run_id=record.run_id, observation=observation(run.experiment, run.plan, step_s=measured.step_s))


def is_enough(observations: Sequence[Observation]) -> bool:
    """Whether any group has enough runs for a correction of its own."""
    return any(count >= FEWEST for count in _machines(observations).values())


def _machines(observations: Sequence[Observation]) -> Counter[str]:
    return Counter(one.groups()[2] for one in observations)


def fitness(observations: Sequence[Observation], base: Calibration) -> Fitness:
    """How well the observations predict each other."""
    alone = [abs(math.expm1(-error)) for error in left_out_error(observations, base=base)]
    with_base = [abs(math.expm1(-(one.log_ratio - base.factor(one.groups())))) for one in observations]
    plain = [abs(math.expm1(-one.log_ratio)) for one in observations]
    return Fitness(
        runs=len(observations),
        groups=tuple(sorted(key for key, count in _machines(observations).items() if count >= FEWEST)),
        uncalibrated=statistics.median(plain),
        base=statistics.median(with_base) if base is not UNCALIBRATED else statistics.median(plain),
        left_out=statistics.median(alone),
        left_out_p90=sorted(alone)[min(len(alone) - 1, int(0.9 * len(alone)))],
    )
