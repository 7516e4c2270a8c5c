"""Triton kernels over rows of logits: what cross entropy needs of them in one pass, and their gradient in place.

Logits are [rows, columns] of one rank's part of the vocabulary, contiguous, in any floating type; all arithmetic is
fp32. Memory traffic is one read for the statistics, one read and one write for the gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_COLUMNS = 8192
_WARPS = 16


def softmax_statistics(
    logits: torch.Tensor, labels: torch.Tensor, first_column: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maximum, sum of exp(x - maximum), and the logit of the label, each [rows] in fp32.

    `labels` [rows] number the whole vocabulary, of which `logits` hold columns from `first_column` on; the logit of a
    label that lies elsewhere is 0.
    """
    rows, columns = logits.shape
    maximum, total, chosen = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    _statistics[(rows,)](
        logits, labels, maximum, total, chosen, columns, first_column, BLOCK=_BLOCK_COLUMNS, num_warps=_WARPS
    )
    return maximum, total, chosen


def softmax_gradient_(
    logits: torch.Tensor,
    labels: torch.Tensor,
    first_column: int,
    log_sum: torch.Tensor,
    weights: torch.Tensor,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """Replaces logits by weights * (softmax * (1 + 2 * z_loss * log_sum) - one-hot of the label).

    `log_sum`, the logarithm of the sum of exp over the whole vocabulary, and `weights` are [rows] in fp32.
    """
    rows, columns = logits.shape
    _gradient[(rows,)](
        logits, labels, log_sum, weights, z_loss, columns, first_column, BLOCK=_BLOCK_COLUMNS, num_warps=_WARPS
    )
    return logits


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(logits, labels, maximum, total, chosen, columns, first_column, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    offsets = tl.arange(0, BLOCK)
    highest = float("-inf")
    added = 0.0
    for first in range(0, columns, BLOCK):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(values, axis=0))
        added = added * tl.exp(highest - higher) + tl.sum(tl.exp(values - higher), axis=0)
        highest = higher
    column = tl.load(labels + row) - first_column
    here = (column >= 0) & (column < columns)
    tl.store(chosen + row, tl.load(start + tl.where(here, column, 0), mask=here, other=0.0).to(tl.float32))
    tl.store(maximum + row, highest)
    tl.store(total + row, added)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(logits, labels, log_sum, weights, z_loss, columns, first_column, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    offsets = tl.arange(0, BLOCK)
    shift = tl.load(log_sum + row)
    weight = tl.load(weights + row)
    factor = 1.0 + 2.0 * z_loss * shift
    column = tl.load(labels + row) - first_column
    for first in range(0, columns, BLOCK):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=float("-inf")).to(tl.float32)
        chance = tl.exp(values - shift) * factor - tl.where(first + offsets == column, 1.0, 0.0)
        tl.store(start + first + offsets, (chance * weight).to(logits.dtype.element_ty), mask=inside)
