"""What the step-time model says a change of one variable does to a run, for corrections and for explanations (pure)."""

from __future__ import annotations

from dataclasses import replace

from pipeline.analysis.facts import RunFacts
from pipeline.planning.estimates import job_of
from pipeline.planning.job import Job
from pipeline.planning.throughput import SPEED, estimate_throughput
from pipeline.types import Layout


def job_of_run(run: RunFacts) -> Job | None:
    """A run as the step-time model reads it; None for published rows and for machines it doesn't know."""
    if run.experiment is None or run.plan is None or run.gpu is None:
        return None
    job = job_of(run.experiment, run.plan.layout)
    known = (job.gpu.peak_tflops, job.gpu.hbm_tb_per_s, job.gpu.nvlink_gb_per_s)
    return job if all(known) else None


def predicted_rate(job: Job) -> float:
    """tokens/s/GPU at P50, without calibration: only ratios of two predictions are of use."""
    return estimate_throughput(job, speed=SPEED).tokens_per_s_per_gpu.p50


def batch_factor(a: RunFacts, b: RunFacts) -> float | None:
    """Predicted rate of `a` with the global batch of `b` over that with its own."""
    job, batch = job_of_run(a), b.factors.get("global_batch")
    if job is None or not isinstance(batch, int):
        return None
    changed = with_global_batch(job.layout, batch)
    if changed is None:
        return None
    return predicted_rate(replace(job, layout=changed)) / predicted_rate(job)


def with_global_batch(layout: Layout, global_batch: int) -> Layout | None:
    """A layout with another global batch; None when it doesn't divide."""
    portion = layout.micro_batch * layout.dp
    if global_batch % portion:
        return None
    return replace(layout, global_batch=global_batch, num_microbatches=global_batch // portion)
