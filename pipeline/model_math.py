"""Arithmetic of a GPT by its shape: parameters, their split over ranks, and FLOPs (dense, MoE, MLA)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pipeline.types import Activation, MlaSpec, ModelSpec, MoeSpec, Normalization


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Parameters of one piece of a model by what tensor parallelism does with them."""

    split: int = 0
    """Divided over tp."""
    replicated: int = 0
    """Held by every tp rank: norms, routers, latent down-projections, biases of row-parallel layers."""
    experts: int = 0
    """All experts of a layer: divided over ep and, inside each, over etp."""

    @property
    def total(self) -> int:
        """Parameters of the piece."""
        return self.split + self.replicated + self.experts

    def __add__(self, other: Weights) -> Weights:
        return Weights(
            split=self.split + other.split,
            replicated=self.replicated + other.replicated,
            experts=self.experts + other.experts,
        )


# --------------------------------------------------------------------------- shape


def head_dim(model: ModelSpec) -> int:
    """Width of one attention head."""
    return model.head_dim or model.hidden_size // model.num_attention_heads


def query_key_dim(model: ModelSpec) -> int:
    """Width over which one head's scores are summed."""
    return model.mla.qk_nope_dim + model.mla.qk_rope_dim if model.mla else head_dim(model)


def value_dim(model: ModelSpec) -> int:
    """Width of one head's output."""
    return model.mla.v_dim if model.mla else head_dim(model)


def is_gated(model: ModelSpec) -> bool:
    """Whether the MLP has a gate beside its up-projection."""
    return model.activation in {Activation.swiglu, Activation.clamped_swiglu}


def fc1_widths(model: ModelSpec) -> int:
    """Matrices in the first linear layer of the MLP: up-projection and, gated, the gate."""
    return 2 if is_gated(model) else 1


def is_moe_layer(model: ModelSpec, layer: int) -> bool:
    """Whether a layer, counted from 0, has experts."""
    return model.moe is not None and layer >= model.moe.dense_layers


def num_moe_layers(model: ModelSpec) -> int:
    """Layers with experts."""
    return max(0, model.num_layers - model.moe.dense_layers) if model.moe else 0


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """The vocabulary rounded up to a multiple of 128 * tp, Megatron-LM's convention."""
    unit = 128 * tp
    return -(-vocab_size // unit) * unit


# --------------------------------------------------------------------------- parameters


def attention_weights(model: ModelSpec) -> Weights:
    """Projections of one layer's attention, with their biases.

    Grouped query: h*(a + 2*g)*d in, a*d*h out, for a heads and g groups of width d. Latent attention: see
    `_latent_weights`.
    """
    if model.mla:
        return _latent_weights(model, model.mla)
    width, hidden = head_dim(model), model.hidden_size
    query, groups = model.num_attention_heads * width, model.num_query_groups * width
    qkv_bias = query + 2 * groups if _or_linear_bias(model, model.qkv_bias) else 0
    return Weights(
        split=hidden * (2 * query + 2 * groups) + qkv_bias + (model.num_attention_heads if model.sinks else 0),
        replicated=(hidden if _or_linear_bias(model, model.output_bias) else 0) + (2 * width if model.qk_norm else 0),
    )


def _latent_weights(model: ModelSpec, mla: MlaSpec) -> Weights:
    """Down to the latents (replicated over tp), up to the heads, and out (DeepSeek-V2, arXiv:2405.04434, 2.1)."""
    heads, hidden = model.num_attention_heads, model.hidden_size
    query = heads * (mla.qk_nope_dim + mla.qk_rope_dim)
    key_value = mla.kv_lora_rank * heads * (mla.qk_nope_dim + mla.v_dim)
    out = heads * mla.v_dim * hidden
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_dim) + mla.kv_lora_rank
    if mla.q_lora_rank is None:
        return Weights(split=hidden * query + key_value + out, replicated=down)
    rank = mla.q_lora_rank
    return Weights(split=rank * query + key_value + out, replicated=down + hidden * rank + rank)


def mlp_weights(model: ModelSpec, width: int, *, bias: bool) -> Weights:
    """One MLP of inner `width`: 2*h*f or, gated, 3*h*f, and biases."""
    hidden, ups = model.hidden_size, fc1_widths(model)
    return Weights(
        split=hidden * width * (ups + 1) + (ups * width if bias else 0),
        replicated=hidden if bias else 0,
    )


def expert_weights(model: ModelSpec, moe: MoeSpec) -> Weights:
    """Router, experts and shared expert of one layer."""
    one = mlp_weights(model, moe.expert_ffn_hidden_size, bias=moe.expert_bias).total
    shared = mlp_weights(model, moe.shared_ffn_hidden_size, bias=False) if moe.shared_ffn_hidden_size else Weights()
    router = model.hidden_size * moe.num_experts + (moe.num_experts if moe.router_bias else 0)
    return Weights(split=shared.split, replicated=router, experts=moe.num_experts * one)


def norm_parameters(model: ModelSpec) -> int:
    """One norm over the hidden state: a scale and, for LayerNorm, a bias."""
    return model.hidden_size * (1 if model.normalization is Normalization.rmsnorm else 2)


def layer_weights(model: ModelSpec, layer: int) -> Weights:
    """One transformer layer, counted from 0: attention, MLP or experts, two norms."""
    norms = Weights(replicated=2 * norm_parameters(model))
    if model.moe is not None and is_moe_layer(model, layer):
        return attention_weights(model) + expert_weights(model, model.moe) + norms
    return attention_weights(model) + mlp_weights(model, model.ffn_hidden_size, bias=has_linear_bias(model)) + norms


def has_linear_bias(model: ModelSpec) -> bool:
    """Whether linear layers carry biases: as said, else GELU models do, as Megatron-Core's GPT is built here."""
    return model.linear_bias if model.linear_bias is not None else model.activation is Activation.gelu


def _or_linear_bias(model: ModelSpec, said: bool | None) -> bool:
    return has_linear_bias(model) if said is None else said


def _layers_total(model: ModelSpec) -> int:
    dense = model.num_layers - num_moe_layers(model)
    total = dense * layer_weights(model, 0).total if dense else 0
    return total + (num_moe_layers(model) * layer_weights(model, model.num_layers - 1).total if model.moe else 0)


def embedding_parameters(model: ModelSpec, vocab: int) -> int:
    """The input embedding, and learned positions where there are any."""
    return model.hidden_size * (vocab + (model.max_sequence_length if model.learned_positions else 0))


def parameters(model: ModelSpec) -> int:
    """Parameters of the whole model without vocabulary padding: layers, final norm, embedding and, untied, output."""
    head = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return _layers_total(model) + norm_parameters(model) + embedding_parameters(model, model.vocab_size) + head


def active_parameters(model: ModelSpec) -> int:
    """Parameters one token meets: of the experts only the `top_k` it is sent to."""
    if model.moe is None:
        return parameters(model)
    one = mlp_weights(model, model.moe.expert_ffn_hidden_size, bias=model.moe.expert_bias).total
    idle = model.moe.num_experts - model.moe.top_k
    return parameters(model) - num_moe_layers(model) * idle * one


def rank_parameters(weights: Weights, *, tp: int, ep: int = 1, etp: int = 1) -> tuple[float, float]:
    """(dense, expert) parameters that one rank holds of a piece."""
    return weights.split / tp + weights.replicated, weights.experts / (ep * etp)


# --------------------------------------------------------------------------- FLOPs


class FlopConvention(Enum):
    """Who counts what; rates by different conventions don't compare."""

    canonical = "canonical"
    """Megatron-LM and Megatron-Bridge: causal half of attention, output layer, no input embedding, no recompute."""
    palm = "palm"
    """PaLM appendix B, nanoGPT: all parameters, attention in full (arXiv:2204.02311)."""
    full_attention = "full_attention"
    """Korthikanti et al.: output layer, attention in full, no recompute (arXiv:2205.05198, appendix A)."""
    hardware = "hardware"
    """Narayanan et al.: as full_attention, with full recompute counted (arXiv:2104.04473, appendix)."""


def matmul_parameters(model: ModelSpec, vocab: int) -> int:
    """Parameters that a token is multiplied with: active, output layer over `vocab`, no embedding, router or norm."""
    attention = _attention_matmul(model)
    dense, ups = model.num_layers - num_moe_layers(model), fc1_widths(model) + 1
    total = model.num_layers * attention + dense * ups * model.hidden_size * model.ffn_hidden_size
    if model.moe is not None:
        width = model.moe.top_k * model.moe.expert_ffn_hidden_size + model.moe.shared_ffn_hidden_size
        total += num_moe_layers(model) * ups * model.hidden_size * width
    return total + vocab * model.hidden_size


def _attention_matmul(model: ModelSpec) -> int:
    if model.mla is None:
        heads = 2 * model.num_attention_heads + 2 * model.num_query_groups
        return model.hidden_size * heads * head_dim(model)
    weights, mla = _latent_weights(model, model.mla), model.mla
    return weights.total - mla.kv_lora_rank - (mla.q_lora_rank or 0)  # less the norms of the latents


def mean_context(model: ModelSpec, sequence_length: int, *, layer: int) -> float:
    """Tokens an average query attends to, causally, in one layer: half the sequence or, with a window, less."""
    window = model.sliding_window
    if window is None or window >= sequence_length or (layer + 1) % model.full_attention_every == 0:
        return sequence_length / 2
    return window - window**2 / (2 * sequence_length)


def attention_flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """Forward FLOPs of scores and weighted sum over all layers, causal part only: 2 * context * a * (d_qk + d_v)."""
    windowed = model.num_layers - model.num_layers // model.full_attention_every if model.sliding_window else 0
    every = model.full_attention_every
    context = (model.num_layers - windowed) * mean_context(model, sequence_length, layer=every - 1)
    context += windowed * mean_context(model, sequence_length, layer=0) if windowed else 0
    return 2 * context * model.num_attention_heads * (query_key_dim(model) + value_dim(model))


def flops_per_token(
    model: ModelSpec, sequence_length: int, *, convention: FlopConvention = FlopConvention.canonical, tp: int = 1
) -> float:
    """FLOPs of forward and backward for one token.

    Canonical: 6 * (matmul parameters with the vocabulary padded for `tp`) + 3 * causal attention; for plain
    attention the latter is 6 * L * s * a * d. Matches Megatron-LM's num_floating_point_operations.
    """
    linear = 6.0 * matmul_parameters(model, padded_vocab_size(model.vocab_size, tp))
    attention = 3 * attention_flops_per_token(model, sequence_length)
    match convention:
        case FlopConvention.canonical:
            return linear + attention
        case FlopConvention.palm:
            return 6.0 * active_parameters(model) + 2 * attention
        case FlopConvention.full_attention:
            return linear + 2 * attention
        case FlopConvention.hardware:
            head = 6.0 * padded_vocab_size(model.vocab_size, tp) * model.hidden_size
            return (linear - head + 2 * attention) * 4 / 3 + head
