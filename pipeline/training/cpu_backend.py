"""Everything Megatron-Core needs to train on a CPU over gloo: replacements of what it takes from CUDA.

Loaded on CPU runs only. `install` has to run before megatron.core is imported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pipeline.training.backend import Backend, LayerParts

CPU = torch.device("cpu")

_GPU_ONLY = ("transformer_engine", "transformer_engine_torch", "apex")
"""Megatron takes their kernels for anything that trains; where no GPU can be seen they don't import, or fail on the
first step with an error of CUDA. An import of a None module fails as that of a missing one does."""

F = TypeVar("F", bound=Callable[..., Any])


def install() -> Backend:
    """Puts the replacements in place for the life of this process; call it in the main thread.

    `torch.cuda.is_available()` stays False.
    """
    for package in _GPU_ONLY:
        sys.modules[package] = None  # type: ignore[assignment]
    for owner, name, replacement in _REPLACEMENTS:
        setattr(owner, name, replacement)
    # Optimizers look at `.grad` of their shards, which are views; through the mode, torch warns of it.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # Backward passes on a CPU run in the thread that asked for them, so the main thread's mode covers them too.
    _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]
    parts = LayerParts(core_attention=CausalAttention, rms_norm=RMSNorm, layer_norm=LayerNorm)
    return Backend(device=CPU, collectives="gloo", parts=parts)


# --------------------------------------------------------------------------- names of torch


def _uncompiled(function: F) -> F:
    return function


_REPLACEMENTS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    # Megatron compiles its fused functions when it is imported: seconds of inductor on each rank, and a C++
    # compiler at the first step, for kernels that are no faster on a CPU.
    (torch, "compile", _uncompiled),
    # The device of gradient buffers, receive buffers and collectives' outputs is asked for by this name.
    (torch.cuda, "current_device", lambda: CPU),
    # 0.19 fetches the stream before it reduces gradients, and uses it for CUDA graphs alone.
    (torch.cuda, "current_stream", lambda: None),
    # A checkpoint waits for the device before it copies from it.
    (torch.cuda, "synchronize", lambda _device=None: None),
)


class _CudaMeansCpu(TorchFunctionMode):
    """Reads Megatron's literal "cuda" as "the device we compute on"."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # The schedules' token counter, the optimizers' flags and gradient clipping create tensors on "cuda".
        options = {**kwargs, "device": CPU} if kwargs and _is_cuda(kwargs.get("device")) else dict(kwargs or {})
        # Rotary embeddings under context parallelism stage their index in page-locked memory.
        options.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not options:
            # Optimizers tell the formats of parameters apart by names such as torch.cuda.FloatTensor.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **options)


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda")


# --------------------------------------------------------------------------- modules of a layer


class RMSNorm(torch.nn.RMSNorm):
    """Megatron's own torch norm refuses sequence parallelism; this one marks its parameters for it."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark_sequence_parallel(self, config.sequence_parallel)


class LayerNorm(torch.nn.LayerNorm):
    """As `RMSNorm`, with mean and bias."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark_sequence_parallel(self, config.sequence_parallel)


def _mark_sequence_parallel(norm: torch.nn.Module, value: bool) -> None:
    """Each tensor-parallel rank sees a part of the sequence: Megatron sums gradients of marked parameters."""
    for parameter in norm.parameters():
        parameter.sequence_parallel = value  # type: ignore[attr-defined]


class CausalAttention(torch.nn.Module):
    """Causal attention with or without context parallelism, which Megatron has only through Transformer Engine.

    Keys and values of the whole sequence are gathered over the context-parallel ranks; rank r of n holds chunks
    r and 2n-1-r of the sequence's 2n chunks, as Megatron deals them.
    """

    def __init__(self, config: Any, pg_collection: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._group = pg_collection.cp
        self._scale = softmax_scale or config.kv_channels**-0.5

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _mask: None,
        **_: Any,
    ) -> torch.Tensor:
        """[sequence, batch, heads, width] to [sequence, batch, heads * width]; the mask is always causal."""
        ranks, rank, length = self._group.size(), self._group.rank(), query.size(0)
        key, value = (_gather_sequence(part, self._group) for part in (key, value))
        positions = torch.cat([_chunk_positions(length, ranks, other) for other in range(ranks)])
        visible = positions[rank * length : (rank + 1) * length, None] >= positions[None, :]
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible,
            scale=self._scale,
            enable_gqa=True,
        )
        return mixed.permute(2, 0, 1, 3).flatten(2).contiguous()


def _chunk_positions(length: int, ranks: int, rank: int) -> torch.Tensor:
    """Positions in the whole sequence of the `length` tokens that a context-parallel rank holds."""
    chunks = torch.arange(length * ranks).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def _gather_sequence(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    if group.size() == 1:
        return part
    whole: torch.Tensor = _GatherSequence.apply(part.contiguous(), group)  # type: ignore[no-untyped-call]
    return whole


class _GatherSequence(torch.autograd.Function):
    """All-gather along the first dimension; backward sums what all ranks want of this rank's part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = part.new_empty(part.size(0) * group.size(), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        part = gradient.new_empty(gradient.size(0) // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(part, gradient.contiguous(), group=ctx.group)
        return part, None
