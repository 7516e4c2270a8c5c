"""Arithmetic of a GPT by its shape: parameters."""

from __future__ import annotations

from pipeline.types import Activation, ModelSpec, Normalization


def head_dim(model: ModelSpec) -> int:
    """Width of one attention head."""
    return model.head_dim or model.hidden_size // model.num_attention_heads


def parameters(model: ModelSpec) -> int:
    """Parameters of the whole model without vocabulary padding.

    Per layer: attention h*(2*a + 2*g)*d (query, output, key and value of a heads and g groups of width d), MLP
    2*h*f or, gated, 3*h*f, two norms; then one final norm, the embedding and, untied, the output layer. RMSNorm
    has a scale only. GELU models carry biases in their linear layers, SwiGLU models none, as Megatron-Core's
    GPT is built here.
    """
    hidden, ffn, width = model.hidden_size, model.ffn_hidden_size, head_dim(model)
    query, groups = model.num_attention_heads * width, model.num_query_groups * width
    gated = model.activation is Activation.swiglu
    attention = hidden * (2 * query + 2 * groups)
    mlp = hidden * ffn * (3 if gated else 2)
    biases = 0 if gated else query + 2 * groups + hidden + ffn + hidden
    norm = hidden if model.normalization is Normalization.rmsnorm else 2 * hidden
    layers = model.num_layers * (attention + mlp + biases + 2 * norm)
    embeddings = model.vocab_size * hidden * (1 if model.tied_embeddings else 2)
    return layers + norm + embeddings


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """The vocabulary rounded up to a multiple of 128 * tp, Megatron-LM's convention."""
    unit = 128 * tp
    return -(-vocab_size // unit) * unit
