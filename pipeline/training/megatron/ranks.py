"""Divides the ranks of a run into Megatron-Core's groups."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from pipeline.training.backend import Backend
from pipeline.types import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where this rank stands in the layout."""

    dp_rank: int
    cp_rank: int


def initialize_ranks(layout: Layout, backend: Backend, *, seed: int, timeout_min: int) -> Position:
    """Divides the ranks of torch's default process group as the layout says and seeds this one.

    `timeout_min` bounds each collective of the new groups, minutes.
    """
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vp if layout.vp > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        num_distributed_optimizer_instances=layout.shard_replicas,
        distributed_timeout_minutes=timeout_min,
        create_gloo_process_groups=False,
    )
    # Stages would otherwise draw the same weights for their layers.
    stage_seed = seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    backend.prepare_randomness()
    model_parallel_cuda_manual_seed(stage_seed)
    return Position(
        dp_rank=parallel_state.get_data_parallel_rank(),
        cp_rank=parallel_state.get_context_parallel_rank(),
    )
