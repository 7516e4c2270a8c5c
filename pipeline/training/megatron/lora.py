"""Adapters beside frozen linear layers, divided over tensor-parallel ranks as the layers are (arXiv:2106.09685)."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn import functional

from pipeline.training.megatron.weights import canonical_name, seeded
from pipeline.types import LoraSpec

COLUMN_PARALLEL = ("linear_qkv", "linear_fc1")
ROW_PARALLEL = ("linear_proj", "linear_fc2")


class Adapter(torch.nn.Module):
    """What is added to a linear layer's output: two matrices in a row, the first to few features.

    Of a column-parallel layer (its output is divided) the second matrix is divided, of a row-parallel one (its input
    is) the first.
    """

    def __init__(self, linear: Any, spec: LoraSpec, config: Any, *, column: bool, gated: bool) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape  # this rank's part
        options = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.a = torch.nn.Parameter(torch.empty(spec.rank, inputs, **options))
        self.b = torch.nn.Parameter(torch.zeros(outputs, spec.rank, **options))
        self.scale, self.column = spec.alpha / spec.rank, column
        self.gated = gated
        self.sequence_parallel = config.sequence_parallel
        divided, whole = (self.b, self.a) if column else (self.a, self.b)
        # Gradient norms count what all ranks hold once, and what is divided as a whole.
        divided.tensor_model_parallel = True  # type: ignore[attr-defined]
        # Each rank sees a part of the sequence: Megatron sums gradients of marked parameters.
        whole.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[sequence, batch, inputs] to [sequence, batch, outputs], each as the layer itself divides it."""
        narrow = functional.linear(features, self.a)
        if self.column:
            narrow = (
                gather_from_sequence_parallel_region(narrow)
                if self.sequence_parallel
                else copy_to_tensor_model_parallel_region(narrow)
            )
        else:
            narrow = (
                reduce_scatter_to_sequence_parallel_region(narrow)
                if self.sequence_parallel
                else reduce_from_tensor_model_parallel_region(narrow)
            )
        return functional.linear(narrow, self.b) * self.scale


def add_adapters(model: GPTModel, spec: LoraSpec, *, seed: int) -> None:
    """Freezes a chunk of the model and puts adapters beside its linear layers, which change nothing yet."""
    model.requires_grad_(False)
    linears = [(name, module) for name, module in model.named_modules() if name.rpartition(".")[2] in spec.targets]
    for name, linear in linears:
        kind = name.rpartition(".")[2]
        gated = model.config.gated_linear_unit and kind == "linear_fc1"
        linear.lora = Adapter(linear, spec, model.config, column=kind in COLUMN_PARALLEL, gated=gated)
        _draw(linear.lora, canonical_name(model, f"{name}.lora.a"), seed)
        linear.register_forward_hook(_add)
        linear.sharded_state_dict = _ShardedWithAdapter(linear)
    if hasattr(model, "embedding"):
        # Recomputed layers only learn when what goes into them is part of the graph.
        model.embedding.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())


def _add(linear: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
    """The layer's output with the adapter's; Megatron's linear layers return a bias beside it."""
    features = inputs[0]
    if getattr(linear, "layer_norm_weight", None) is not None:
        features = _normalized(linear, features)
    added, *rest = output
    return (added + linear.lora(features), *rest)


def _normalized(linear: Any, features: torch.Tensor) -> torch.Tensor:
    """What Transformer Engine's layer with a norm in front computes inside, where no adapter can take it from."""
    weight, size = linear.layer_norm_weight, (features.size(-1),)
    if linear.normalization == "RMSNorm":
        return functional.rms_norm(features, size, weight, linear.eps)
    return functional.layer_norm(features, size, weight, linear.layer_norm_bias, linear.eps)


def _draw(adapter: Adapter, name: str, seed: int) -> None:
    """Draws the first matrix whole, so that it doesn't depend on the layout, and keeps this rank's part."""
    ranks = 1 if adapter.column else int(parallel_state.get_tensor_model_parallel_world_size())
    rank = 0 if adapter.column else int(parallel_state.get_tensor_model_parallel_rank())
    rows, columns = adapter.a.shape
    whole = torch.empty(rows, columns * ranks)
    with seeded(f"{seed} {name}"):
        torch.nn.init.normal_(whole, std=(columns * ranks) ** -0.5)
    adapter.a.data.copy_(whole[:, rank * columns : (rank + 1) * columns])


class _ShardedWithAdapter:
    """Megatron's linear layers would save an adapter as if every rank held all of it."""

    def __init__(self, linear: Any) -> None:
        self._linear = linear

    def __call__(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        linear, adapter = self._linear, self._linear.lora
        state: dict[str, Any] = type(linear).sharded_state_dict(linear, prefix, sharded_offsets, metadata)
        own = {"lora.a": adapter.a, "lora.b": adapter.b}
        divided = {"lora.b": 0} if adapter.column else {"lora.a": 1}
        adapters: dict[str, Any] = make_sharded_tensors_for_checkpoint(own, prefix, divided, sharded_offsets)
        if adapter.gated:
            # Each rank holds a part of the gate and a part of the up-projection, not one part of both together.
            adapters[f"{prefix}lora.b"] = apply_swiglu_sharded_factory(adapters[f"{prefix}lora.b"], sharded_offsets)
        return {**state, **adapters}
