"""What is trained: the shape of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Normalization(Enum):
    """Which norm a transformer layer uses."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(Enum):
    """The MLP's activation; swiglu is gated, gelu and squared_relu are not."""

    swiglu = "swiglu"
    gelu = "gelu"
    squared_relu = "squared_relu"


@dataclass(kw_only=True, slots=True)
class MoeSpec:
    """Experts in place of the MLP of a layer."""

    num_experts: int
    top_k: int
    """Experts each token is sent to."""
    expert_ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    """Width of the expert every token passes; 0: none."""
    dense_layers: int = 0
    """Layers at the start that keep the dense MLP of width `ffn_hidden_size`."""
    expert_bias: bool = False
    """Linear layers of the experts carry biases."""
    router_bias: bool = False
    """The router adds a bias for each expert."""
    capacity_factor: float | None = None
    """Tokens an expert takes, relative to an even share; None: it takes all that come (dropless)."""


@dataclass(kw_only=True, slots=True)
class MlaSpec:
    """Multi-head latent attention in place of query, key and value projections."""

    kv_lora_rank: int
    qk_nope_dim: int
    """Width of a query or key head without position."""
    qk_rope_dim: int
    """Width of its part with rotary position, shared by all key heads."""
    v_dim: int
    q_lora_rank: int | None = None
    """Rank of the query's latent; None: queries are projected directly."""


@dataclass(kw_only=True, slots=True)
class ModelSpec:
    """A GPT, by its shape."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    """Key/value heads (GQA); equal to `num_attention_heads` for plain attention."""
    vocab_size: int
    """Token ids the data may hold, before padding."""
    max_sequence_length: int
    head_dim: int | None = None
    """Width of one head; None: hidden_size / num_attention_heads."""
    normalization: Normalization = Normalization.rmsnorm
    activation: Activation = Activation.swiglu
    tied_embeddings: bool = False
    """Input embedding and output layer share one matrix."""
    rope_base: float = 10000.0
    moe: MoeSpec | None = None
    """Experts; None: every layer has a dense MLP."""
    mla: MlaSpec | None = None
    """Latent attention; None: grouped-query attention."""
    qk_norm: bool = False
    """Queries and keys are normalized, head by head."""
    linear_bias: bool | None = None
    """Linear layers carry biases; None: GELU models do, others don't."""
    qkv_bias: bool | None = None
    """Query, key and value projections carry biases; None: as `linear_bias`."""
    output_bias: bool | None = None
    """Attention's output projection carries a bias; None: as `linear_bias`."""
    sinks: bool = False
    """Each attention head has a learned sink."""
    sliding_window: int | None = None
    """Tokens a windowed layer looks back; None: all layers see the whole sequence."""
    full_attention_every: int = 1
    """With a window: every n-th layer still sees the whole sequence."""
    learned_positions: bool = False
    """A learned embedding for each position, instead of rotary ones."""
    hidden_dropout: float = 0.0
    """Probability that a value is dropped before it joins the residual stream."""
