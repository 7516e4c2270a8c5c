"""Which layers stand on which pipeline stage, and how many micro-batches a stage has in flight."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.model_math import is_moe_layer
from pipeline.planning.job import Job
from pipeline.types import ModelSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank's share of the layers."""

    index: int
    dense_layers: int
    moe_layers: int
    first: bool
    """Holds the embedding."""
    last: bool
    """Holds the output layer and the loss."""
    chunks_in_flight: float
    """Forward passes of whole chunks whose activations are kept at the peak."""
    chunks: int

    @property
    def layers(self) -> int:
        """Layers of all its chunks."""
        return self.dense_layers + self.moe_layers


def chunk_sizes(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk in order of the model.

    Even where that works; else the embedding and the loss count as a layer each, as Megatron-Core's
    account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split have it; what remains goes to
    the chunks in the middle.
    """
    if layers % chunks == 0:
        return (layers // chunks,) * chunks
    base, rest = divmod(layers + 2, chunks)
    sizes = [base] * chunks
    start = (chunks - rest) // 2
    for index in range(start, start + rest):
        sizes[index] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return tuple(max(0, size) for size in sizes)


def stages(job: Job) -> tuple[Stage, ...]:
    """All stages of a job."""
    layout, model = job.layout, job.model
    sizes = layout.chunk_layers or chunk_sizes(model.num_layers, layout.pp * job.vp)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    found = []
    for stage in range(layout.pp):
        mine = range(stage, len(sizes), layout.pp)
        layers = sum(sizes[chunk] for chunk in mine)
        moe = sum(_moe_layers(model, starts[chunk], sizes[chunk]) for chunk in mine)
        found.append(
            Stage(
                index=stage,
                dense_layers=layers - moe,
                moe_layers=moe,
                first=stage == 0,
                last=stage == layout.pp - 1,
                chunks_in_flight=chunks_in_flight(stage, layout.pp, job.vp, layout.num_microbatches),
                chunks=job.vp,
            )
        )
    return tuple(found)


def _moe_layers(model: ModelSpec, start: int, count: int) -> int:
    return sum(is_moe_layer(model, layer) for layer in range(start, start + count)) if model.moe else 0


def chunks_in_flight(stage: int, pp: int, vp: int, micro_batches: int) -> int:
    """Chunks whose activations a stage keeps at its peak.

    1F1B keeps min(m, pp - stage) micro-batches; the interleaved schedule warms up with 2*(pp - stage - 1) +
    (vp - 1)*pp chunks and keeps one more (schedules.py, get_pp_rank_microbatches).
    """
    if vp == 1:
        return min(micro_batches, pp - stage)
    return min(micro_batches * vp, 2 * (pp - stage - 1) + (vp - 1) * pp + 1)
