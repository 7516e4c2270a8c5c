"""First weights that don't depend on the layout: each tensor is drawn whole, from a stream of its own name.

Every rank draws the whole tensor on the host and keeps its part, so that any two layouts start from the same model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

_SPLIT_ROWS = ("linear_qkv", "linear_q_proj", "linear_q_up_proj", "linear_kv_up_proj", "linear_fc1")
_SPLIT_COLUMNS = ("linear_proj", "linear_fc2")
# Projections to latents: Transformer Engine's are whole on every rank, Megatron-Core's own are split.
_EITHER = {"linear_q_down_proj": ("q_lora_rank",), "linear_kv_down_proj": ("kv_lora_rank", "qk_pos_emb_head_dim")}
_DRAWN_VECTORS = ("router.bias", "softmax_offset")


def draw_weights(model: GPTModel, *, seed: int) -> None:
    """Overwrites what a chunk of the model was built with; norms and biases keep their ones and zeros."""
    for name, parameter in torch.nn.Module.named_parameters(model):
        if parameter.dim() > 1 or name.endswith(_DRAWN_VECTORS):
            put_part(model, name, parameter, _draw(model, name, parameter, seed))


def put_part(model: GPTModel, name: str, parameter: torch.Tensor, whole: torch.Tensor) -> None:
    """Copies this rank's part of a whole tensor into a parameter of a chunk."""
    parameter.data.copy_(_part(model.config, name, whole, parameter.size()))


def _draw(model: GPTModel, name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
    whole = torch.empty(_whole_size(model.config, name, parameter.size()))
    with seeded(f"{seed} {canonical_name(model, name)}"):
        _initializer(model.config, name)(whole)
    return whole


class seeded:  # noqa: N801 - reads as a function where it is used
    """The host's random stream is that of this text inside, and goes on as before after."""

    def __init__(self, text: str) -> None:
        self._seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def __enter__(self) -> None:
        self._before = torch.get_rng_state()
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._before)


def canonical_name(model: GPTModel, name: str) -> str:
    """A parameter's name in the whole model: its layer and its expert by their numbers there, whoever holds them."""
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    name = re.sub(
        r"^decoder\.layers\.(\d+)",
        lambda found: f"decoder.layers.{model.decoder.layers[int(found[1])].layer_number - 1}",
        name,
    )
    sequential = re.sub(r"experts\.local_experts\.(\d+)\.(\w+)\.weight$", r"experts.\2.weight\1", name)
    return re.sub(
        r"experts\.(linear_fc[12])\.weight(\d+)$",
        lambda found: f"experts.{_first_expert(model.config) + int(found[2])}.{found[1]}.weight",
        sequential,
    )


def _first_expert(config: TransformerConfig) -> int:
    """Number of this rank's first expert."""
    ranks = parallel_state.get_expert_model_parallel_world_size()
    return int(parallel_state.get_expert_model_parallel_rank() * (config.num_moe_experts // ranks))


def _initializer(config: TransformerConfig, name: str) -> Callable[[torch.Tensor], object]:
    """Megatron's own rule: what adds to the residual stream starts smaller, the deeper the model."""
    initializer: Callable[[torch.Tensor], object]
    if any(f"{part}." in name for part in _SPLIT_COLUMNS):
        initializer = config.output_layer_init_method
    elif name.startswith("embedding"):
        initializer = config.embedding_init_method
    else:
        initializer = config.init_method
    return initializer


# --------------------------------------------------------------------------- tensor parallelism


def _whole_size(config: TransformerConfig, name: str, part: torch.Size) -> list[int]:
    sizes = list(part)
    dimension = _split_dimension(config, name, part)
    if dimension is not None:
        sizes[dimension] *= _ranks(name)[1]
    return sizes


def _part(config: TransformerConfig, name: str, whole: torch.Tensor, size: torch.Size) -> torch.Tensor:
    dimension, (rank, ranks) = _split_dimension(config, name, size), _ranks(name)
    if dimension is None:
        return whole
    # The gate and the up-projection of a gated MLP are two matrices in one, and each is divided.
    stride = 2 if config.gated_linear_unit and "linear_fc1" in name else 1
    pieces = torch.split(whole, size[dimension] // stride, dim=dimension)
    return torch.cat(pieces[rank::ranks], dim=dimension)


def _split_dimension(config: TransformerConfig, name: str, part: torch.Size) -> int | None:
    """Which dimension tensor-parallel ranks divide; None: each holds the whole."""
    module = next(_modules_of(name), "")
    if module in _SPLIT_COLUMNS:
        return 1
    if module in _EITHER:
        return None if part[0] == sum(getattr(config, name) for name in _EITHER[module]) else 0
    split = module in _SPLIT_ROWS or "word_embeddings" in name or name.startswith("output_layer")
    return 0 if split or name.endswith("softmax_offset") else None


def _modules_of(name: str) -> Iterator[str]:
    return (part for part in reversed(name.split(".")) if part.startswith("linear_"))


def _ranks(name: str) -> tuple[int, int]:
    """This rank's number among those that divide the tensor, and how many they are."""
    if ".experts." in name:
        return (
            int(parallel_state.get_expert_tensor_parallel_rank()),
            int(parallel_state.get_expert_tensor_parallel_world_size()),
        )
    return (
        int(parallel_state.get_tensor_model_parallel_rank()),
        int(parallel_state.get_tensor_model_parallel_world_size()),
    )
