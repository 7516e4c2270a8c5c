"""After a run: predicted against measured, and what a calibration learns from it."""

from __future__ import annotations

from pipeline.planning.calibration import DEFAULT_STACK
from pipeline.planning.estimates import job_of
from pipeline.planning.fitting import Observation, log_ratio
from pipeline.planning.steptime import rate_class, step_time
from pipeline.planning.throughput import SPEED
from pipeline.types import Experiment, Interval, Outcome, Plan


def outcomes(plan: Plan, *, step_s: float | None = None, peak_gib: float | None = None) -> tuple[Outcome, ...]:
    """What was measured beside what was planned: median step time, largest peak of allocated memory over ranks."""
    found: list[Outcome] = []
    if step_s is not None and plan.throughput is not None:
        rate = plan.tokens_per_step / step_s
        found += [
            Outcome(name="step time", predicted=plan.throughput.step_s, measured=step_s, unit="s"),
            Outcome(name="throughput", predicted=plan.throughput.tokens_per_s, measured=rate, unit="tokens/s"),
        ]
    if peak_gib is not None and plan.memory is not None:
        worst = max(plan.memory.stages, key=lambda stage: stage.allocated_gib)
        bounds = Interval(p10=worst.allocated_low_gib, p50=worst.allocated_gib, p90=worst.allocated_high_gib)
        found.append(Outcome(name="allocated memory", predicted=bounds, measured=peak_gib, unit="GiB"))
    return tuple(found)


def outcome_text(found: Outcome) -> str:
    """One line for people."""
    where = "inside" if found.inside else "outside"
    drift = "; far off: look at throttling, the network and the software before trusting it" if found.drifted else ""
    return (
        f"{found.name}: predicted {found.predicted.p50:.4g} {found.unit} ({found.predicted.p10:.4g} to "
        f"{found.predicted.p90:.4g}), measured {found.measured:.4g} {found.unit} ({found.error:+.1%}, {where}){drift}"
    )


def observation(experiment: Experiment, plan: Plan, *, step_s: float, stack: str = DEFAULT_STACK) -> Observation:
    """What one finished run says to `calibration.fit`; step_s is the median of its steady steps."""
    job = job_of(experiment, plan.layout)
    modelled = step_time(job, SPEED, plan.layout.ranks_per_node).total_s
    return Observation(
        kind="moe" if job.model.moe else "dense",
        stack=stack,
        gpu=job.gpu.name,
        rate=rate_class(job),
        model=job.model.name,
        log_ratio=log_ratio(step_s, modelled),
    )
