"""Modules of a transformer layer that Megatron-Core has only with Transformer Engine, for CPU runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional


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


class LatentProjection(torch.nn.Module):
    """A linear map that tensor-parallel ranks hold whole, each for its part of the sequence.

    Megatron-Core's own is divided over ranks, and its backward pass never sums what ranks want of the positions.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[torch.Tensor], object],
        **_: Any,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        init_method(self.weight)
        _mark_sequence_parallel(self, config.sequence_parallel)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[..., input_size] to [..., output_size], and no bias."""
        return functional.linear(hidden, self.weight), None


class CausalAttention(torch.nn.Module):
    """Causal attention with or without context parallelism, windows, sinks and wider keys than values.

    Keys and values of the whole sequence are gathered over the context-parallel ranks; rank r of n holds chunks
    r and 2n-1-r of the sequence's 2n chunks, as Megatron deals them.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        pg_collection: Any,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self._group = pg_collection.cp
        self._scale = softmax_scale or (k_channels or config.kv_channels) ** -0.5
        self._window = _window(config, layer_number)
        self.softmax_offset = _sinks(config) if config.softmax_type == "learnable" else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:
        """[sequence, batch, heads, width] to [sequence, batch, heads * width]; always causal.

        `mask` tells what else a token (rows) must not see, bool of shape [batch, 1, sequence, sequence]; it can't be
        had together with context parallelism.
        """
        ranks, rank, length = self._group.size(), self._group.rank(), query.size(0)
        key, value = (_gather_sequence(part, self._group) for part in (key, value))
        positions = torch.cat([_chunk_positions(length, ranks, other) for other in range(ranks)])
        distance = positions[rank * length : (rank + 1) * length, None] - positions[None, :]
        visible = (distance >= 0) & (distance < self._window) if self._window else distance >= 0
        if mask is not None:
            visible = visible & ~mask
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        mixed = self._mix(query, key, value, visible)
        return mixed.permute(2, 0, 1, 3).flatten(2).contiguous()

    def _mix(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Weighted sums of values, [batch, heads, sequence, width]."""
        if self.softmax_offset is None:
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, scale=self._scale, enable_gqa=True
            )
        # A sink takes its share of the attention to nothing.
        heads = query.size(1) // key.size(1)
        key, value = (part.repeat_interleave(heads, dim=1) for part in (key, value))
        scores = (query @ key.transpose(-1, -2)).float() * self._scale
        scores = scores.masked_fill(~visible, float("-inf"))
        sinks = self.softmax_offset.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return weights.to(value.dtype) @ value


def _window(config: Any, layer_number: int) -> int | None:
    """Tokens that a query of this layer sees, itself included; None: all before it."""
    if config.window_size is None or layer_number % config.window_attn_skip_freq == 0:
        return None
    return int(config.window_size[0]) + 1


def _sinks(config: Any) -> torch.nn.Parameter:
    heads = config.num_attention_heads // config.tensor_model_parallel_size
    return torch.nn.Parameter(torch.zeros(heads, dtype=config.params_dtype))


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
