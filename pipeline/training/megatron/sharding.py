"""What data-parallel ranks divide among themselves, and when they exchange it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.planning.overlaps import derive_overlaps, gathers_parameters
from pipeline.training.backend import Backend
from pipeline.training.megatron.options import Options
from pipeline.types import DType, Experiment, Layout, LowPrecision, Sharding

Wrapped: TypeAlias = DistributedDataParallel | FullyShardedDataParallel


def wrap(
    experiment: Experiment,
    layout: Layout,
    config: TransformerConfig,
    chunk: torch.nn.Module,
    backend: Backend,
    *,
    first: bool,
) -> Wrapped:
    """A chunk with its gradient buffers; only the first one's are cut into buckets, as Megatron-LM does."""
    ddp_config = DistributedDataParallelConfig(**ddp_options(experiment, layout, backend))
    if ddp_config.use_megatron_fsdp:
        return FullyShardedDataParallel(
            config=config, ddp_config=ddp_config, module=chunk, disable_bucketing=not first, device=backend.device
        )
    return DistributedDataParallel(config=config, ddp_config=ddp_config, module=chunk, disable_bucketing=not first)


def ddp_options(
    experiment: Experiment, layout: Layout, backend: Backend
) -> Annotated[Options, DistributedDataParallelConfig]:
    """How gradients are kept, reduced and sharded."""
    overlaps, precision = derive_overlaps(experiment, layout), experiment.precision
    sharding = experiment.techniques.sharding
    return dict(
        use_distributed_optimizer=gathers_parameters(experiment),
        num_distributed_optimizer_instances=layout.shard_replicas,
        use_megatron_fsdp=sharding is not Sharding.none,
        data_parallel_sharding_strategy="no_shard" if sharding is Sharding.none else sharding.value,
        # gloo has no sum that is divided on the way.
        gradient_reduce_div_fusion=not backend.is_cpu,
        grad_reduce_in_fp32=experiment.techniques.grads is DType.fp32,
        overlap_grad_reduce=overlaps.grad_reduce,
        overlap_param_gather=overlaps.param_gather,
        # All stages then gather at once, before any of them waits for another.
        align_param_gather=overlaps.param_gather and layout.vp > 1,
        # The loop looks at all ranks' gradients at once: Megatron's own check raises on some ranks only.
        check_for_nan_in_grad=False,
        fp8_param_gather=precision.low_precision_params and precision.low_precision is not LowPrecision.nvfp4,
        reuse_grad_buf_for_mxfp8_param_ag=reuses_gradients_for_parameters(experiment),
    )


def reuses_gradients_for_parameters(experiment: Experiment) -> bool:
    """Whether gathered mxfp8 parameters take the gradients' buffer; without it they take one more of their own."""
    precision = experiment.precision
    return precision.low_precision is LowPrecision.mxfp8 and precision.low_precision_params


def connect(config: TransformerConfig, model: list[Wrapped]) -> None:
    """Tells the pipeline schedules how the chunks put off, start and finish their exchanges."""
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = _one_or_all([chunk.no_sync for chunk in model])
    if model[0].ddp_config.overlap_grad_reduce and len(model) > 1:
        config.grad_sync_func = [chunk.start_grad_sync for chunk in model]
    if model[0].ddp_config.overlap_param_gather and len(model) > 1:
        config.param_sync_func = [chunk.start_param_sync for chunk in model]


def _one_or_all(functions: list[object]) -> object:
    return functions[0] if len(functions) == 1 else functions
