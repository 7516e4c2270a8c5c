"""Megatron-Core's configuration of a model under a layout, put together from what each subject sets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from megatron.core.activations import quick_gelu, squared_relu
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn import functional

from pipeline.model_math import has_linear_bias, head_dim, is_gated
from pipeline.training.backend import Backend
from pipeline.training.megatron import memory, parallel, precision
from pipeline.training.megatron.experts import expert_options
from pipeline.training.megatron.options import Options
from pipeline.types import (
    Activation,
    Experiment,
    Layout,
    MlaSpec,
    ModelSpec,
    Normalization,
    RopeScaling,
    RopeScalingKind,
)

_NORMALIZATIONS = {Normalization.rmsnorm: "RMSNorm", Normalization.layernorm: "LayerNorm"}
_ACTIVATIONS = {
    Activation.swiglu: functional.silu,
    Activation.clamped_swiglu: quick_gelu,
    Activation.gelu: functional.gelu,
    Activation.squared_relu: squared_relu,
}


def transformer_config(experiment: Experiment, layout: Layout, backend: Backend) -> TransformerConfig:
    """Megatron's configuration of the model under this layout on this backend."""
    model, options = experiment.model, transformer_options(experiment, layout, backend)
    if model.mla is not None:
        return MLATransformerConfig(**options)
    config = TransformerConfig(**options)
    scaling = model.rope_scaling
    if scaling is not None and scaling.kind is RopeScalingKind.yarn:
        _set_yarn(config, scaling)
    return config


def transformer_options(experiment: Experiment, layout: Layout, backend: Backend) -> Options:
    """The keywords of that configuration."""
    model = experiment.model
    return {
        **_shape(model, is_cpu=backend.is_cpu),
        **parallel.parallel_options(experiment, layout, backend),
        **precision.precision_options(experiment.precision),
        **memory.memory_options(experiment),
        **memory.loss_options(experiment),
        **expert_options(experiment, backend),
        **_determinism(experiment),
        **({} if model.mla is None else _latent(model, model.mla)),
    }


def _shape(model: ModelSpec, *, is_cpu: bool) -> Annotated[Options, TransformerConfig]:
    fused, clamped = not is_cpu, model.activation is Activation.clamped_swiglu
    return dict(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=head_dim(model),
        normalization=_NORMALIZATIONS[model.normalization],
        layernorm_epsilon=model.norm_eps,
        # DeepSeek's latents are always normalized.
        qk_layernorm=model.qk_norm or model.mla is not None,
        gated_linear_unit=is_gated(model),
        activation_func=_ACTIVATIONS[model.activation],
        activation_func_clamp_value=7.0 if clamped else None,
        glu_linear_offset=1.0 if clamped else 0.0,
        add_bias_linear=has_bias_everywhere(model),
        add_qkv_bias=bool(model.qkv_bias),
        softmax_type="learnable" if model.sinks else "vanilla",
        # A query sees this many tokens before itself.
        window_size=None if model.sliding_window is None else (model.sliding_window - 1, 0),
        window_attn_skip_freq=None if model.sliding_window is None else model.full_attention_every,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=0.0,
        # Without a bias there is nothing to fuse with GELU, and Megatron refuses to; it has no fused squared ReLU.
        bias_activation_fusion=fused and (is_gated(model) or has_bias_everywhere(model)),
        bias_dropout_fusion=fused,
        # Megatron's fused rotary embedding of latent attention knows YaRN alone.
        apply_rope_fusion=fused and (model.mla is None or _is_yarn(model)),
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )


def _determinism(experiment: Experiment) -> Annotated[Options, TransformerConfig]:
    return dict(deterministic_mode=experiment.recipe.deterministic)


def has_bias_everywhere(model: ModelSpec) -> bool:
    """Whether every linear layer carries a bias: the one switch that Megatron-Core has."""
    if model.moe is not None:
        return model.moe.expert_bias
    return has_linear_bias(model)


def _is_yarn(model: ModelSpec) -> bool:
    return model.rope_scaling is not None and model.rope_scaling.kind is RopeScalingKind.yarn


def _latent(model: ModelSpec, mla: MlaSpec) -> Annotated[Options, MLATransformerConfig]:
    scaling = model.rope_scaling or RopeScaling(kind=RopeScalingKind.yarn, factor=1.0, original_length=4096)
    return dict(
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_head_dim=mla.qk_nope_dim,
        qk_pos_emb_head_dim=mla.qk_rope_dim,
        v_head_dim=mla.v_dim,
        rope_type="yarn" if _is_yarn(model) else "rope",
        rotary_base=model.rope_base,
        rotary_scaling_factor=scaling.factor,
        original_max_position_embeddings=scaling.original_length,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        mscale=scaling.mscale,
        mscale_all_dim=scaling.mscale_all_dim,
    )


def _set_yarn(config: TransformerConfig, scaling: RopeScaling) -> None:
    """Megatron's GPT reads YaRN's numbers from attributes that its configuration class doesn't declare."""
    values = asdict(scaling)
    for name, value in {
        "rotary_scaling_factor": values["factor"],
        "original_max_position_embeddings": values["original_length"],
        "beta_fast": values["beta_fast"],
        "beta_slow": values["beta_slow"],
        "mscale": values["mscale"],
        "mscale_all_dim": values["mscale_all_dim"],
        "correction_range_round_to_int": values["whole_dimensions"],
    }.items():
        setattr(config, f"yarn_{name}", value)
