"""What is trained: the shape of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Normalization(Enum):
    """Which norm a transformer layer uses."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(Enum):
    """The MLP's activation; the swiglu ones are gated, gelu and squared_relu are not."""

    swiglu = "swiglu"
    clamped_swiglu = "clamped_swiglu"
    """gpt-oss's: gate * sigmoid(1.702 * gate) * (up + 1), both clamped at 7."""
    gelu = "gelu"
    squared_relu = "squared_relu"


class RouterScore(Enum):
    """What the router makes of its logits."""

    softmax = "softmax"
    """Softmax over the chosen experts."""
    sigmoid = "sigmoid"
    """Sigmoid of each, then divided by their sum (DeepSeek-V3)."""


class Balance(Enum):
    """What keeps tokens spread over experts."""

    none = "none"
    aux_loss = "aux_loss"
    """Switch Transformer's loss, over each micro-batch."""
    seq_aux_loss = "seq_aux_loss"
    """The same, over each sequence (DeepSeek-V2)."""
    global_aux_loss = "global_aux_loss"
    """The same, over the micro-batches of all data-parallel ranks so far in the step."""


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
    """The router has a bias for each expert: learned with softmax scores; with sigmoid scores moved after each step
    towards an even load (DeepSeek-V3)."""
    router_score: RouterScore = RouterScore.softmax
    router_scale: float | None = None
    """Factor of the weights of the chosen experts; None: 1."""
    router_groups: int | None = None
    """Groups that experts are divided into, of which a token is sent to `router_groups_per_token`."""
    router_groups_per_token: int | None = None
    balance: Balance = Balance.aux_loss
    balance_weight: float = 1e-3
    """Factor of the balance loss."""
    z_loss: float = 0.0
    """Factor of the router's z-loss (ST-MoE, arXiv:2202.08906)."""
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


class RopeScalingKind(Enum):
    """How rotary positions are stretched beyond the length a model was first trained at."""

    linear = "linear"
    """Positions are divided by the factor."""
    llama3 = "llama3"
    """Low frequencies are, high ones are not (Llama 3.1); `original_length` is 8192."""
    yarn = "yarn"
    """arXiv:2309.00071."""


@dataclass(kw_only=True, slots=True)
class RopeScaling:
    """A model's stretch of rotary positions."""

    kind: RopeScalingKind
    factor: float
    original_length: int = 8192
    """Sequence length before the stretch, tokens."""
    beta_fast: float = 32.0
    """yarn: turns within the original length above which a frequency stays as it is."""
    beta_slow: float = 1.0
    """yarn: turns below which it is divided by the factor."""
    mscale: float = 1.0
    """yarn: factor of the logits' growth with log(factor)."""
    mscale_all_dim: float = 0.0
    """yarn: the same over all dimensions, which divides it (DeepSeek)."""
    whole_dimensions: bool = True
    """yarn: bounds of the ramp are rounded to whole dimensions."""


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
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    """Added to the variance inside norms."""
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
