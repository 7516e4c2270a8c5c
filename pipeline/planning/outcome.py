"""After a run: predicted against measured, and what a calibration learns from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.planning.calibration import DEFAULT_STACK, Observation, log_ratio
from pipeline.planning.estimates import job_of
from pipeline.planning.steptime import rate_class, step_time
from pipeline.planning.throughput import SPEED
from pipeline.types import Experiment, Interval, Plan

_DRIFT_WIDTHS = 2.0
"""How many half-widths of the interval off means a fault of software or node, not noise (about three sigma)."""


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


def outcomes(plan: Plan, *, step_s: float | None = None, peak_gib: float | None = None) -> tuple[Outcome, ...]:
    """What was measured beside what was planned: median step time, largest peak of allocated memory over ranks."""
    found = []
    if step_s is not None and plan.throughput is not None:
        found.append(Outcome(name="step time", predicted=plan.throughput.step_s, measured=step_s, unit="s"))
    if peak_gib is not None and plan.memory is not None:
        worst = max(plan.memory.stages, key=lambda stage: stage.allocated_gib)
        outside = worst.outside_torch_gib
        bounds = Interval(
            p10=min(worst.allocated_gib, worst.lower_gib),
            p50=worst.allocated_gib,
            p90=max(worst.allocated_gib, worst.upper_gib - outside),
        )
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
