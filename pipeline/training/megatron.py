"""Every name of Megatron-Core that himori uses, behind functions of our own types (0.16 to 0.19).

A contract test reads this file and looks each name, keyword and method up in the wheels of both ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import __version__ as _version
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import (
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)
from torch.nn import functional

from pipeline.model_math import has_linear_bias, head_dim, is_gated
from pipeline.training.backend import Backend, LayerParts
from pipeline.training.data import Batch
from pipeline.types import (
    Activation,
    CrossEntropy,
    DType,
    Experiment,
    Layout,
    Normalization,
    OptimizerSpec,
    Plan,
)

_TORCH_DTYPES = {DType.fp32: torch.float32, DType.bf16: torch.bfloat16}
_NORMALIZATIONS = {Normalization.rmsnorm: "RMSNorm", Normalization.layernorm: "LayerNorm"}
_ACTIVATIONS = {
    Activation.swiglu: functional.silu,
    Activation.gelu: functional.gelu,
    Activation.squared_relu: squared_relu,
}


def version() -> str:
    """The release of Megatron-Core in use."""
    return str(_version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where this rank stands in the layout."""

    dp_rank: int
    cp_rank: int


# --------------------------------------------------------------------------- ranks


def initialize_ranks(layout: Layout, backend: Backend, *, seed: int, timeout_min: int) -> Position:
    """Divides the ranks of torch's default process group as the layout says and seeds this one.

    `timeout_min` bounds each collective of the new groups, minutes.
    """
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        distributed_timeout_minutes=timeout_min,
        create_gloo_process_groups=False,
    )
    # Stages would otherwise draw the same weights for their layers.
    stage_seed = seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    # Weights of a CPU run come from torch's CPU generator; the tracker meant for inference is the public way to
    # have none of CUDA's generators touched.
    model_parallel_cuda_manual_seed(stage_seed, inference_rng_tracker=backend.is_cpu)
    return Position(
        dp_rank=parallel_state.get_data_parallel_rank(),
        cp_rank=parallel_state.get_context_parallel_rank(),
    )


# --------------------------------------------------------------------------- model


def build_model(experiment: Experiment, plan: Plan, backend: Backend) -> DistributedDataParallel:
    """This rank's part of the model, with its gradient buffers, on the backend's device."""
    config = transformer_config(experiment, plan.layout, backend)
    if backend.is_cpu:
        torch.default_generator.manual_seed(_weight_seed(experiment.seed, layer=0))
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layers(config, backend.parts, seed=experiment.seed),
        vocab_size=plan.padded_vocab_size,
        max_sequence_length=experiment.model.max_sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=experiment.model.tied_embeddings,
        position_embedding_type="learned_absolute" if experiment.model.learned_positions else "rope",
        rotary_base=experiment.model.rope_base,
    ).to(backend.device)
    return DistributedDataParallel(
        config=config,
        ddp_config=DistributedDataParallelConfig(
            use_distributed_optimizer=experiment.optimizer.distributed,
            grad_reduce_in_fp32=True,
            # The loop looks at all ranks' gradients at once: Megatron's own check raises on some ranks only.
            check_for_nan_in_grad=False,
        ),
        module=Float16Module(config, model) if config.bf16 else model,
    )


def transformer_config(experiment: Experiment, layout: Layout, backend: Backend) -> TransformerConfig:
    """Megatron's configuration of the model under this layout on this backend."""
    model, dtype = experiment.model, experiment.precision.dtype
    fused = not backend.is_cpu
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=head_dim(model),
        normalization=_NORMALIZATIONS[model.normalization],
        qk_layernorm=model.qk_norm,
        gated_linear_unit=is_gated(model),
        activation_func=_ACTIVATIONS[model.activation],
        add_bias_linear=has_linear_bias(model),
        add_qkv_bias=bool(model.qkv_bias),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=dtype is DType.bf16,
        params_dtype=_TORCH_DTYPES[dtype],
        pipeline_dtype=_TORCH_DTYPES[dtype],
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        # On a CPU every rank draws the whole matrix and keeps its part: weights don't depend on tp.
        use_cpu_initialization=backend.is_cpu,
        # Without a bias there is nothing to fuse with GELU, and Megatron refuses to; it has no fused squared ReLU.
        bias_activation_fusion=fused and (is_gated(model) or has_linear_bias(model)),
        bias_dropout_fusion=fused,
        apply_rope_fusion=fused,
        # The fused loss rounds the logits' gradient to bf16 whatever the model's type: no fp32 run may have that.
        cross_entropy_loss_fusion=dtype is DType.bf16 and experiment.techniques.cross_entropy is CrossEntropy.native,
        cross_entropy_fusion_impl="native",
        masked_softmax_fusion=False,
        deterministic_mode=experiment.recipe.deterministic,
        gradient_accumulation_fusion=False,
        deallocate_pipeline_outputs=True,
        # gloo has no batched sends, and nothing to synchronize with.
        batch_p2p_comm=fused,
        batch_p2p_sync=fused,
        finalize_model_grads_func=finalize_model_grads,
    )


def _layers(
    config: TransformerConfig, parts: LayerParts | None, *, seed: int
) -> ModuleSpec | TransformerBlockSubmodules:
    if parts is None:
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    norm = {"RMSNorm": parts.rms_norm, "LayerNorm": parts.layer_norm}[config.normalization]
    layer: ModuleSpec = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.module = SeededLayer
    layer.params = {"seed": seed}
    inside: TransformerLayerSubmodules = layer.submodules
    inside.input_layernorm = inside.pre_mlp_layernorm = norm
    attention: SelfAttentionSubmodules = inside.self_attention.submodules
    attention.core_attention = parts.core_attention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = norm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=norm)


class SeededLayer(TransformerLayer):  # type: ignore[misc]  # Megatron is untyped to mypy
    """A layer whose first weights depend on its number in the whole model, not on the stage that holds it.

    The output layer is drawn right after the last layer, on whichever stage that is, so it is covered too.
    """

    def __init__(
        self, config: TransformerConfig, submodules: Any, layer_number: int = 1, *, seed: int, **options: Any
    ) -> None:
        number = layer_number + get_transformer_layer_offset(config)
        torch.default_generator.manual_seed(_weight_seed(seed, layer=number))
        super().__init__(config=config, submodules=submodules, layer_number=layer_number, **options)


def _weight_seed(seed: int, *, layer: int) -> int:
    """Seeds of the embedding (layer 0) and of each layer, apart for neighbouring seeds of the run."""
    return (seed * 100_003 + layer) % (1 << 63)


# --------------------------------------------------------------------------- optimizer


def build_optimizer(model: DistributedDataParallel, spec: OptimizerSpec) -> MegatronOptimizer:
    """AdamW over the model's parameters; formats and sharding are those the model was built with."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=spec.lr,
        min_lr=spec.min_lr,
        weight_decay=spec.weight_decay,
        adam_beta1=spec.beta1,
        adam_beta2=spec.beta2,
        adam_eps=spec.eps,
        clip_grad=spec.clip_grad,
        bf16=model.config.bf16,
        params_dtype=model.config.params_dtype,
        use_distributed_optimizer=model.ddp_config.use_distributed_optimizer,
    )
    return get_megatron_optimizer(
        config,
        [model],
        config_overrides=get_standard_config_overrides(config),
        use_gloo_process_groups=False,
    )


def build_schedule(optimizer: MegatronOptimizer, spec: OptimizerSpec, steps: int) -> OptimizerParamScheduler:
    """The learning rate over `steps` optimizer steps: linear warm-up from 0, then the spec's decay to `min_lr`."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=spec.lr,
        min_lr=spec.min_lr,
        lr_warmup_steps=spec.warmup_steps,
        # A run shorter than its warm-up is all warm-up; Megatron wants a step of decay to exist.
        lr_decay_steps=max(steps, spec.warmup_steps + 1),
        lr_decay_style=spec.decay.value,
        start_wd=spec.weight_decay,
        end_wd=spec.weight_decay,
        wd_incr_steps=steps,
        wd_incr_style="constant",
    )


def learning_rate(schedule: OptimizerParamScheduler) -> float:
    """The rate that the next optimizer step will use."""
    return float(schedule.get_lr({}))


def advance_schedule(schedule: OptimizerParamScheduler, *, steps: int = 1) -> None:
    """Moves on by some optimizer steps."""
    schedule.step(increment=steps)


# --------------------------------------------------------------------------- one step


def clear_gradients(model: DistributedDataParallel, optimizer: MegatronOptimizer) -> None:
    """Empties both places that hold gradients: the reduced ones and those the optimizer was handed."""
    model.zero_grad_buffer()
    optimizer.zero_grad()


def forward_backward(
    model: DistributedDataParallel, batches: Iterator[Batch], layout: Layout, sequence_length: int
) -> list[torch.Tensor]:
    """Adds up the gradient of the mean loss over `layout.num_microbatches` batches and reduces it over ranks.

    Returns the loss of each micro-batch, a scalar, on ranks of the last stage; nothing on others.
    """
    run = get_forward_backward_func()
    losses: list[torch.Tensor] = run(
        forward_step_func=_forward_step,
        data_iterator=batches,
        model=model,
        num_microbatches=layout.num_microbatches,
        seq_length=sequence_length,
        micro_batch_size=layout.micro_batch,
        forward_only=False,
    )
    return losses


def _forward_step(batches: Iterator[Batch], model: DistributedDataParallel) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    return model(batch.tokens, batch.positions, None, labels=batch.labels), _mean_loss


def _mean_loss(token_losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss as Megatron wants it, a sum and its number of tokens, and the mean to report."""
    total = token_losses.float().sum()
    count = torch.tensor(token_losses.numel(), dtype=torch.int, device=token_losses.device)
    return total, count, total.detach() / count


def gradient_sum(model: DistributedDataParallel) -> float:
    """Sum over the gradients on this rank, reduced ones where they are; it isn't finite when one of them isn't."""
    buffers = [*model.buffers, *model.expert_parallel_buffers]
    return float(sum(buffer.grad_data.sum(dtype=torch.float64) for buffer in buffers))


def timed_configs(model: DistributedDataParallel, optimizer: MegatronOptimizer) -> list[Any]:
    """The configurations whose `timers` Megatron calls around the parts of a step."""
    return [model.config, optimizer.config]


def optimizer_step(optimizer: MegatronOptimizer) -> float:
    """Clips and applies the gradients; returns their global norm before clipping."""
    _, grad_norm, _ = optimizer.step()
    return float("nan") if grad_norm is None else float(grad_norm)
