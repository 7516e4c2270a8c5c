"""What is legal and still not what it seems."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.planning.job import Job, is_fp8
from pipeline.types import CrossEntropy, Recompute


def warnings(job: Job) -> tuple[str, ...]:
    """What is accepted and still worth a word."""
    return tuple(_warnings(job))


def _warnings(job: Job) -> Iterator[str]:
    techniques, layout = job.techniques, job.layout
    if techniques.recompute is Recompute.selective and "core_attn" in techniques.recompute_modules:
        yield "recompute of core_attn saves nothing with flash attention and costs its forward pass"
    if layout.num_microbatches < layout.pp:
        idle = (layout.pp - 1) / (layout.num_microbatches + layout.pp - 1)
        yield f"{layout.num_microbatches} micro-batches for pp {layout.pp}: stages idle {idle:.0%} of the time"
    if layout.tp > 1 and not layout.sequence_parallel:
        yield f"tp {layout.tp} without sequence parallelism keeps norms and residuals whole on every rank"
    if techniques.cross_entropy is CrossEntropy.te:
        yield "megatron-core 0.19 refuses Transformer Engine's cross entropy; native needs more memory"
    if job.precision.low_precision_params and is_fp8(job.precision):
        yield "fp8 parameters change numerics: compare the loss with bf16 before a long run"
    if techniques.optimizer_offload:
        yield "optimizer state in host memory was seen to make steps 1.9 to 4.2 times longer; the estimate ignores it"
