"""How far a run is from the nearest published result, and a ranked list of what to look at (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.analysis.causes import Cause, causes, step_tail
from pipeline.analysis.facts import RunFacts
from pipeline.errors import UserError
from pipeline.model_math import active_parameters
from pipeline.types import CrossEntropy, DType, Experiment, Plan, Recompute

# How many doublings a difference counts as, for distance: another GPU is further away than half the GPUs.
_WEIGHTS = {"gpu": 3.0, "precision": 2.0, "task": 2.0, "kind": 2.0}
_PLENTY = 0.25
"""Share of the GPU's memory that has to be free before memory techniques look like waste."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A run beside the published row nearest to it."""

    nearest: RunFacts
    distance: float
    """In doublings: 0 is the same configuration."""
    apart: tuple[str, ...]
    """What makes the distance."""
    rate_ratio: float | None
    """tokens/s/GPU of the run over the published one; it compares only where the distance is small."""
    flops_ratio: float | None
    """The same in model FLOP/s, one count for both: fairer between models and sequence lengths."""
    checks: tuple[Cause, ...]


def gap(run: RunFacts, rows: Sequence[RunFacts]) -> Gap:
    """The nearest row and what may explain the rest; raises UserError when there is no row to measure against."""
    if not rows:
        raise UserError("gap: the table of published results has no rows")
    scored = [(distance(run, row), row) for row in rows]
    (parts, nearest) = min(scored, key=lambda one: sum(one[0].values()))
    checks = [*causes(run, nearest), *_own_checks(run)]
    return Gap(
        nearest=nearest,
        distance=sum(parts.values()),
        apart=tuple(f"{name} ({value:.1f})" for name, value in sorted(parts.items(), key=lambda one: -one[1]) if value),
        rate_ratio=_over(run.tokens_per_s_per_gpu, nearest.tokens_per_s_per_gpu),
        flops_ratio=_over(run.model_tflops_per_gpu, nearest.model_tflops_per_gpu),
        checks=tuple(sorted(checks, key=lambda one: -one.weight)),
    )


def distance(run: RunFacts, row: RunFacts) -> dict[str, float]:
    """Doublings between a run and a row, by variable."""
    parts = {
        key: _WEIGHTS[key] * (run.factors.get(key) != row.factors.get(key)) for key in ("gpu", "precision", "task")
    }
    parts |= {
        key: _doublings(run.factors.get(key), row.factors.get(key))
        for key in ("sequence_length", "gpus", "global_batch")
    }
    parts["global_batch"] *= 0.25
    parts["gpus"] *= 0.25
    if run.model and row.model:
        parts["model size"] = _doublings(active_parameters(run.model), active_parameters(row.model))
        parts["dense or MoE"] = _WEIGHTS["kind"] * ((run.model.moe is None) != (row.model.moe is None))
    else:
        parts["model"] = 3.0 * (run.factors.get("model") != row.factors.get("model"))
    return {key: round(value, 3) for key, value in parts.items()}


def _doublings(a: object, b: object) -> float:
    if isinstance(a, int | float) and isinstance(b, int | float) and a > 0 and b > 0:
        return abs(math.log2(a / b))
    return 1.0


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


# --------------------------------------------------------------------------- what the run itself shows


def _own_checks(run: RunFacts) -> Iterator[Cause]:
    """Habits of tuned recipes that this run doesn't follow, with what they were seen to bring."""
    experiment, plan = run.experiment, run.plan
    if experiment is None or plan is None:
        return
    yield from _memory_checks(experiment, plan)
    yield from _precision_checks(experiment)
    yield from _time_checks(plan)
    if not run.telemetry:
        yield _check("clocks", 0.01, "clocks, power and throttling were not watched: a capped GPU would look like this")
    tail = step_tail(run.steady_step_s)
    if tail is not None and tail > 1.02:
        yield _check("slow steps", math.log(tail), f"the mean step is {tail - 1:.1%} longer than the median")
    flags = {flag for node in run.bindings for flag in node.flags} - {"EXACT"}
    if flags:
        yield _check("binding", 0.08, f"ranks are bound {', '.join(sorted(flags))}; see the certificates in binding/")


def _memory_checks(experiment: Experiment, plan: Plan) -> Iterator[Cause]:
    if plan.memory is None:
        return
    free = 1 - plan.memory.worst.point_gib / plan.memory.capacity_gib
    if free < _PLENTY:
        return
    if experiment.techniques.recompute is not Recompute.none:
        yield _check("recompute", 0.25, f"recompute is on with {free:.0%} of the memory free; full costs about 30 %")
    if plan.layout.tp > 1:
        yield _check("tp", 0.10, f"tp {plan.layout.tp} with {free:.0%} of the memory free; smaller communicates less")
    yield _check("micro_batch", 0.05, f"micro-batch {plan.layout.micro_batch} with {free:.0%} of the memory free")


def _precision_checks(experiment: Experiment) -> Iterator[Cause]:
    techniques = experiment.techniques
    if techniques.cross_entropy is CrossEntropy.unfused:
        yield _check("cross entropy", 0.03, "unfused cross entropy; fused is faster and smaller")
    if techniques.grads is DType.fp32 and experiment.precision.dtype is DType.bf16:
        yield _check("gradients", 0.02, "gradients are reduced in fp32; tuned recipes use bf16 (changes numerics)")
    if experiment.optimizer.distributed is False:
        yield _check("optimizer", 0.02, "the optimizer is not distributed: each rank updates everything")


def _time_checks(plan: Plan) -> Iterator[Cause]:
    """Where the step-time model says that time goes to anything but arithmetic."""
    if plan.throughput is None:
        return
    step = plan.throughput.step
    for name in (
        "pipeline_s",
        "tensor_parallel_s",
        "context_parallel_s",
        "expert_parallel_s",
        "data_parallel_s",
        "recompute_s",
    ):
        share = getattr(step, name) / step.total_s
        if share > 0.03:
            yield _check(
                name.removesuffix("_s").replace("_", " "), share, f"the plan spends {share:.0%} of a step on it"
            )


def _check(name: str, weight: float, evidence: str) -> Cause:
    return Cause(name=name, factor=None, weight=weight, evidence=evidence)
