"""Weights of the Llama and Qwen families between Hugging Face's names and Megatron-Core's: tensors in, tensors out.

Megatron's tensors are whole here and go by their names in the whole model (`megatron.weights.canonical_name`); how a
layout divides them is not this module's matter. Megatron keeps queries, keys and values in one matrix, group by group
(the queries of a group, its key, its value), and the gate above the up-projection in another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.errors import DataError
from pipeline.model_math import head_dim
from pipeline.types import Activation, ModelSpec, Normalization, RopeScalingKind

Tensors = dict[str, torch.Tensor]
Read = Callable[[str], torch.Tensor]
"""A tensor by its Hugging Face name; raises DataError when there is none."""

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(linear_fc[12])\.weight")

_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_INSIDE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
# Transformer Engine keeps a norm with the linear layer behind it.
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}


def whole_tensor(name: str, model: ModelSpec, read: Read, *, rows: int | None = None) -> torch.Tensor:
    """Megatron's tensor of this name, made of Hugging Face's.

    `rows` is the padded vocabulary, for embedding and output layer; rows beyond the vocabulary are zero. Raises
    DataError for a tensor that these families don't have.
    """
    if name in _OUTSIDE:
        return _padded(read(_OUTSIDE[name]), rows) if "layernorm" not in name else read(_OUTSIDE[name])
    layer, inside = _split(name)
    if inside in _INSIDE:
        return read(f"{layer}.{_INSIDE[inside]}")
    if inside in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        kind = inside.rpartition(".")[2]
        return _join_qkv([read(f"{layer}.self_attn.{one}_proj.{kind}") for one in "qkv"], model)
    if inside == "mlp.linear_fc1.weight":
        return torch.cat([read(f"{layer}.mlp.{one}_proj.weight") for one in ("gate", "up")])
    if found := _EXPERT.fullmatch(inside):
        expert = f"{layer}.mlp.experts.{found[1]}"
        if found[2] == "linear_fc2":
            return read(f"{expert}.down_proj.weight")
        return torch.cat([read(f"{expert}.{one}_proj.weight") for one in ("gate", "up")])
    raise DataError(f"{name}: has no counterpart in Hugging Face's {architecture(model)}")


def to_hugging_face(tensors: Mapping[str, torch.Tensor], model: ModelSpec) -> Tensors:
    """Hugging Face's tensors made of Megatron's whole ones, the vocabulary's padding cut off."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        made |= _parts_of(name, tensor, model)
    return made


def _parts_of(name: str, tensor: torch.Tensor, model: ModelSpec) -> Tensors:
    if name in _OUTSIDE:
        return {_OUTSIDE[name]: tensor if "layernorm" in name else tensor[: model.vocab_size]}
    layer, inside = _split(name)
    if inside in _INSIDE:
        return {f"{layer}.{_INSIDE[inside]}": tensor}
    if inside in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        kind = inside.rpartition(".")[2]
        parts = zip("qkv", _cut_qkv(tensor, model), strict=True)
        return {f"{layer}.self_attn.{one}_proj.{kind}": part for one, part in parts}
    found = _EXPERT.fullmatch(inside)
    block = f"{layer}.mlp.experts.{found[1]}" if found else f"{layer}.mlp"
    if inside == "mlp.linear_fc1.weight" or (found and found[2] == "linear_fc1"):
        gate, up = tensor.chunk(2)
        return {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}
    if found:
        return {f"{block}.down_proj.weight": tensor}
    raise DataError(f"{name}: has no counterpart in Hugging Face's {architecture(model)}")


def merge_adapters(tensors: Mapping[str, torch.Tensor], *, scale: float) -> Tensors:
    """Adds what adapters (`X.lora.a`, `X.lora.b`) say to the weights (`X.weight`) they stand beside."""
    merged = {name: tensor for name, tensor in tensors.items() if ".lora." not in name}
    for name, down in tensors.items():
        if name.endswith(".lora.a"):
            linear = name.removesuffix(".lora.a")
            weight, up = merged[f"{linear}.weight"], tensors[f"{linear}.lora.b"]
            merged[f"{linear}.weight"] = (weight.float() + scale * up.float() @ down.float()).to(weight.dtype)
    return merged


def _split(name: str) -> tuple[str, str]:
    """Hugging Face's layer and Megatron's name inside it, norms by the names they have outside Transformer Engine."""
    found = _LAYER.fullmatch(name)
    if found is None:
        raise DataError(f"{name}: is no tensor of a layer")
    return f"model.layers.{found[1]}", _FUSED_NORMS.get(found[2], found[2])


def _padded(tensor: torch.Tensor, rows: int | None) -> torch.Tensor:
    missing = 0 if rows is None else rows - tensor.size(0)
    return torch.cat([tensor, tensor.new_zeros(missing, tensor.size(1))]) if missing > 0 else tensor


def _join_qkv(parts: Sequence[torch.Tensor], model: ModelSpec) -> torch.Tensor:
    """Queries, keys and values of [heads * width, ...] each, rows regrouped to [group, (queries of the group, key,
    value) * width, ...]."""
    groups = model.num_query_groups
    return torch.cat([part.reshape(groups, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 1)


def _cut_qkv(tensor: torch.Tensor, model: ModelSpec) -> list[torch.Tensor]:
    """The inverse of `_join_qkv`."""
    groups, width = model.num_query_groups, head_dim(model)
    queries = model.num_attention_heads // groups * width
    parts = tensor.reshape(groups, -1, *tensor.shape[1:]).split([queries, width, width], dim=1)
    return [part.flatten(0, 1) for part in parts]


# --------------------------------------------------------------------------- configuration


def architecture(model: ModelSpec) -> str:
    """Hugging Face's model type of this shape; raises DataError when none of the families has it."""
    for what, has in (
        ("layernorm", model.normalization is not Normalization.rmsnorm),
        ("an activation other than swiglu", model.activation is not Activation.swiglu),
        ("biases in all linear layers", bool(model.linear_bias)),
        ("latent attention", model.mla is not None),
        ("attention sinks", model.sinks),
        ("a sliding window", model.sliding_window is not None),
        ("learned positions", model.learned_positions),
        ("shared experts", model.moe is not None and model.moe.shared_ffn_hidden_size > 0),
        ("experts without qk_norm", model.moe is not None and not model.qk_norm),
        ("qkv_bias and qk_norm at once", bool(model.qkv_bias) and model.qk_norm),
        (
            "yarn or linear rope_scaling",
            model.rope_scaling is not None and model.rope_scaling.kind is not RopeScalingKind.llama3,
        ),
    ):
        if has:
            raise DataError(f"model {model.name}: no Llama or Qwen model has {what}")
    if model.moe is not None:
        return "qwen3_moe"
    return "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama"


_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def config_of(model: ModelSpec) -> dict[str, Any]:
    """What Hugging Face's config.json says of a model of this shape."""
    kind = architecture(model)
    config = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "attention_bias": False,
        **_numbers(model),
        "rope_scaling": _rope_scaling(model),
        "max_position_embeddings": model.max_sequence_length,
    }
    return config | ({"decoder_sparse_step": 1, "mlp_only_layers": []} if model.moe else {})


def check_config(config: Mapping[str, Any], model: ModelSpec, *, where: str) -> None:
    """Raises DataError naming the first number in which a config.json differs from the model of the run."""
    kind = architecture(model)
    if config.get("model_type") != kind:
        raise DataError(f"{where}: model_type {config.get('model_type')}, model={model.name} is of the type {kind}")
    rope = config.get("rope_parameters") or {}  # where transformers keeps it from version 5 on
    defaults = {
        "head_dim": head_dim(model),
        "rope_theta": rope.get("rope_theta"),
        "tie_word_embeddings": False,
        "num_experts": config.get("num_local_experts"),  # likewise
    }
    for key, wanted in _numbers(model).items():
        found = config.get(key, defaults.get(key))
        if found != wanted:
            raise DataError(f"{where}: {key} {found}, model={model.name} has {wanted}; give the model of these weights")
    scaling = config.get("rope_scaling") or rope
    found_scaling = None if scaling.get("rope_type", scaling.get("type", "default")) == "default" else dict(scaling)
    wanted_scaling = _rope_scaling(model)
    if (found_scaling is None) != (wanted_scaling is None) or any(
        (found_scaling or {}).get(key) != value for key, value in (wanted_scaling or {}).items()
    ):
        raise DataError(f"{where}: rope_scaling {found_scaling}, model={model.name} has {wanted_scaling}")


def _numbers(model: ModelSpec) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": head_dim(model),
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.moe is not None:
        numbers |= {
            "num_experts": model.moe.num_experts,
            "num_experts_per_tok": model.moe.top_k,
            "moe_intermediate_size": model.moe.expert_ffn_hidden_size,
            # Megatron-Core's weights of the chosen experts add up to 1.
            "norm_topk_prob": True,
        }
    return numbers


def _rope_scaling(model: ModelSpec) -> dict[str, Any] | None:
    """Megatron-Core has Llama 3's other numbers built in."""
    if model.rope_scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": model.rope_scaling.factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": model.rope_scaling.original_length,
    }
