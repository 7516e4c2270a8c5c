"""Experiment -> what it takes: memory, speed and cost of a layout, and a layout where none was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import PlanRefused
from pipeline.planning.advice import warnings
from pipeline.planning.calibration import UNCALIBRATED, Calibration
from pipeline.planning.changes import Fix, cheapest_fixes
from pipeline.planning.collectives import network
from pipeline.planning.job import Accept, Job, accept_all
from pipeline.planning.layout import Problem, derive_layout, uses_gpus
from pipeline.planning.memory import estimate_memory
from pipeline.planning.search import SearchResult, search
from pipeline.planning.steptime import rate_class
from pipeline.planning.throughput import estimate_cost, estimate_throughput, profile_price
from pipeline.types import (
    Cluster,
    Cost,
    DType,
    Experiment,
    Fit,
    GpuSpec,
    Layout,
    MemoryEstimate,
    Reason,
    ThroughputEstimate,
)

_QUICK = 2_000
"""Layouts looked at where `plan` has to answer at once."""
_NO_GPU = GpuSpec(name="no GPU")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """What a job takes; None where the profile doesn't say enough."""

    memory: MemoryEstimate | None = None
    throughput: ThroughputEstimate | None = None
    cost: Cost | None = None
    warnings: tuple[str, ...] = ()


def job_of(experiment: Experiment, layout: Layout) -> Job:
    """The request as the estimators read it."""
    spec = experiment.hardware.gpu_spec if uses_gpus(experiment) else None
    return Job(
        model=experiment.model,
        layout=layout,
        precision=experiment.precision,
        techniques=experiment.techniques,
        sequence_length=experiment.recipe.sequence_length,
        gpu=spec or _NO_GPU,
        node=experiment.hardware.node_spec,
        distributed_optimizer=experiment.optimizer.distributed,
    )


def estimate(experiment: Experiment, job: Job, calibration: Calibration = UNCALIBRATED) -> Estimates:
    """Memory, speed and cost of a legal job; nothing is estimated that the profile has no numbers for."""
    if job.gpu.memory_gib is None:
        return Estimates()
    memory = estimate_memory(job)
    if not _has_speed(job):
        return Estimates(memory=memory, warnings=warnings(job))
    throughput = estimate_throughput(job, calibration=calibration)
    price = profile_price(job.node, _site_price(experiment.cluster))
    cost = estimate_cost(job, throughput, steps=experiment.recipe.steps, price=price)
    assumed = network(job, job.layout.ranks_per_node).assumed if job.layout.nodes > 1 else ()
    return Estimates(memory=memory, throughput=throughput, cost=cost, warnings=(*warnings(job), *assumed))


def _has_speed(job: Job) -> bool:
    """fp32 runs on other units than the peaks in the profiles: nothing is said about its speed."""
    known = rate_class(job) in job.gpu.peak_tflops and "bf16" in job.gpu.peak_tflops
    return known and job.gpu.hbm_tb_per_s is not None and job.precision.dtype is not DType.fp32


def _site_price(cluster: Cluster) -> tuple[float, str, str] | None:
    if cluster.price_per_gpu_hour is None:
        return None
    return cluster.price_per_gpu_hour, cluster.price_currency, cluster.price_basis or f"cluster {cluster.name}"


# --------------------------------------------------------------------------- a layout where none was asked for


def _expected_to_fit(job: Job) -> bool:
    memory = estimate_memory(job)
    return memory.worst.point_gib <= memory.capacity_gib


# Rules that another layout may keep.
_BY_LAYOUT = {"global_batch"}


def free_to_choose(experiment: Experiment) -> bool:
    """Whether nobody asked for a parallel size."""
    request = experiment.layout
    return not any((request.tp, request.pp, request.cp, request.vp, request.ep, request.etp, request.sequence_parallel))


def choose_layout(
    experiment: Experiment,
    job: Job,
    problems: Sequence[Problem],
    calibration: Calibration,
    accept: Accept,
) -> tuple[Job, tuple[Reason, ...]]:
    """The job as it is where it is legal and likely fits, or sizes were asked for; else the fastest that does."""
    if not (free_to_choose(experiment) and _has_speed(job)) or any(one.rule not in _BY_LAYOUT for one in problems):
        return job, ()
    if not problems and _expected_to_fit(job):
        return job, ()
    found = search(job, calibration=calibration, only_layout=True, keep=1, limit=_QUICK, accept=accept)
    if not found.best:
        return job, ()
    chosen = found.best[0]
    layout = chosen.job.layout
    sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp}"
    sizes += "".join(f", {name} {size}" for name, size in (("vp", layout.vp), ("ep", layout.ep)) if size > 1)
    alone = problems[0].message if problems else f"dp {job.layout.dp} alone isn't expected to fit"
    why = f"{alone}; best of {found.tried - found.illegal - found.refused} that may, {found.tried} looked at"
    return chosen.job, (Reason(what="layout", value=sizes, why=why),)


def refuse_what_cannot_fit(job: Job, memory: MemoryEstimate | None, accept: Accept = accept_all) -> None:
    """Raises PlanRefused naming the stage, both sides, and the least change that fits and that `accept` takes."""
    if memory is None or memory.fit is not Fit.refused:
        return
    worst = max(memory.stages, key=lambda stage: stage.lower_gib)
    where = f"stage {worst.stage}" if len(memory.stages) > 1 else "a rank"
    raise PlanRefused(
        f"memory: {where} needs at least {worst.lower_gib:.0f} GiB (weights {worst.weights_gib:.0f}, gradients "
        f"{worst.gradients_gib:.0f}, optimizer {worst.optimizer_gib:.0f}, activations {worst.activations_gib:.0f}), "
        f"{job.gpu.name} gives {memory.capacity_gib:.0f}; {_advice(job, accept)}"
    )


def _advice(job: Job, accept: Accept) -> str:
    fixes = cheapest_fixes(job, accept)
    if fixes:
        return "least change that fits: " + "; or ".join(map(fix_text, fixes))
    planned = cheapest_fixes(job)
    if planned:
        ways = "; or ".join(map(fix_text, planned))
        return f"nothing that this version can train is enough; what could be planned: {ways}"
    return "no single step or sum of steps here is enough: give more nodes=N or a smaller model"


def fix_text(fix: Fix) -> str:
    """A fix in one line: overrides, verdict, cost."""
    numerics = ", changes numerics" if fix.numerics else ""
    offload = any("optimizer_offload" in change for change in fix.changes)
    cost = "steps 1.9 to 4.2 x longer where it was measured" if offload else f"{fix.slowdown:.2f} x the GPU-time"
    return f"{' '.join(fix.changes)} ({fix.memory.fit.value}, {cost}{numerics})"


def search_layouts(
    experiment: Experiment,
    calibration: Calibration = UNCALIBRATED,
    *,
    keep: int = 3,
    accept: Accept = accept_all,
) -> tuple[Job, SearchResult]:
    """The job as asked for and the best layouts for its model, batch, formats and GPUs: `himori plan --search`.

    Raises PlanRefused where the profile has no numbers to search with.
    """
    layout, _ = derive_layout(experiment)
    job = job_of(experiment, layout)
    if job.gpu.memory_gib is None or not _has_speed(job):
        raise PlanRefused(
            f"search: hardware {experiment.hardware.name} with precision {experiment.precision.name} has no numbers "
            f"to plan with; give hardware=NAME of a GPU profile and a bf16 precision"
        )
    return job, search(job, calibration=calibration, keep=keep, accept=accept)
