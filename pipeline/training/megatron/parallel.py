"""How the model is divided over ranks, and what of their exchange overlaps with computation."""

from __future__ import annotations

from typing import Annotated

from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.planning.overlaps import derive_overlaps
from pipeline.training.backend import Backend
from pipeline.training.megatron.options import Options
from pipeline.types import Experiment, Layout


def parallel_options(experiment: Experiment, layout: Layout, backend: Backend) -> Annotated[Options, TransformerConfig]:
    """Sizes, placement of layers, and sends between stages."""
    overlap_p2p, vp = derive_overlaps(experiment, layout).p2p, layout.vp if layout.vp > 1 else None
    return dict(
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=vp,
        pipeline_model_parallel_layout=_placement(layout),
        context_parallel_size=layout.cp,
        cp_comm_type=experiment.techniques.cp_comm.value,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        tp_comm_overlap=experiment.techniques.overlap_tp,
        overlap_p2p_comm=overlap_p2p,
        # Two interleaved stages that batch their sends get numbers that are wrong without a word; gloo has no
        # batched sends.
        batch_p2p_comm=not (backend.is_cpu or vp or overlap_p2p),
        batch_p2p_sync=not backend.is_cpu,
        # A send of gloo still reads an output that was given up after it was started.
        deallocate_pipeline_outputs=not (backend.is_cpu and overlap_p2p),
        # On a CPU every rank draws the whole matrix and keeps its part.
        use_cpu_initialization=backend.is_cpu,
    )


def _placement(layout: Layout) -> list[list[str]] | None:
    """Megatron's list of what each chunk holds, in the model's order; None: layers are split evenly."""
    if not layout.chunk_layers:
        return None
    chunks = [["decoder"] * count for count in layout.chunk_layers]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("loss")
    return chunks
