"""Which modules a layer is made of: Transformer Engine's on a GPU, Megatron-Core's own and ours on a CPU."""

from __future__ import annotations

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from pipeline.training.backend import LayerParts


def layer_specs(
    config: TransformerConfig, parts: LayerParts | None, *, vp_stage: int | None
) -> TransformerBlockSubmodules:
    """The layers of one chunk of this rank's stage, dense ones and those with experts in the model's order."""
    block: TransformerBlockSubmodules = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=parts is None,
        normalization=config.normalization,
        vp_stage=vp_stage,
    )
    if parts is not None:
        _use_parts(block, parts, config)
    return block


def _use_parts(block: TransformerBlockSubmodules, parts: LayerParts, config: TransformerConfig) -> None:
    norm = {"RMSNorm": parts.rms_norm, "LayerNorm": parts.layer_norm}[config.normalization]
    block.layer_norm = norm
    for layer in block.layer_specs:
        inside: TransformerLayerSubmodules = layer.submodules
        inside.input_layernorm = inside.pre_mlp_layernorm = norm
        if config.multi_latent_attention:
            latent: MLASelfAttentionSubmodules = inside.self_attention.submodules
            latent.core_attention = parts.core_attention
            latent.q_layernorm = latent.kv_layernorm = norm
            latent.linear_q_down_proj = latent.linear_kv_down_proj = parts.latent_projection
        else:
            attention: SelfAttentionSubmodules = inside.self_attention.submodules
            attention.core_attention = parts.core_attention
            if config.qk_layernorm:
                attention.q_layernorm = attention.k_layernorm = norm
