"""The families as ModelSpecs of a few thousand parameters, and the tokens they are asked about."""

from __future__ import annotations

from typing import Any

from pipeline.types import ModelSpec, MoeSpec, RopeScaling, RopeScalingKind

TOKENS = [[5, 99, 3, 42, 0, 7, 77, 12, 64, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]


def spec(**changes: Any) -> ModelSpec:
    """A Llama with grouped queries, changed."""
    shape: dict[str, Any] = dict(
        name="tiny",
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=48,
        num_attention_heads=4,
        num_query_groups=2,
        vocab_size=100,
        max_sequence_length=64,
    )
    return ModelSpec(**shape | changes)


SPECS = {
    "llama": spec(),
    "llama_tied_scaled": spec(
        tied_embeddings=True,
        rope_base=500.0,
        rope_scaling=RopeScaling(kind=RopeScalingKind.llama3, factor=8.0, original_length=8192),
    ),
    "qwen2": spec(qkv_bias=True, norm_eps=1e-6),
    "qwen3": spec(qk_norm=True, head_dim=16, norm_eps=1e-6, rope_base=1e6, num_query_groups=4),
    "qwen3_moe": spec(qk_norm=True, norm_eps=1e-6, moe=MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=24)),
}
