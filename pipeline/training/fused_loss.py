"""The loss of a language model whose output layer is divided by rows of the vocabulary over ranks.

Per token: -log p(label), plus z * log(Z)^2 for a z-loss (PaLM, arXiv:2204.02311, section 5). A label below 0 counts for
nothing. `linear_loss` computes the logits itself, a block of tokens at a time, and never holds them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

NOT_LEARNT = -1
"""A label that counts for nothing."""
BLOCK_LOGITS = 1 << 31
"""Logits held at once: 4 GiB in bf16. Large blocks keep the matrix products at full speed."""
_SAME = 1e-3
"""How far, relatively, what comes from above may differ between tokens that count: rounding alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Which rows of the vocabulary this rank's output layer holds, and who holds the others."""

    start: int
    group: dist.ProcessGroup | None
    """Ranks that hold the other rows; None: this rank holds all."""

    def reduce(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        """Combines a value of each rank, in place."""
        if self.group is not None and self.group.size() > 1:
            dist.all_reduce(values, op=operation, group=self.group)


def linear_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    vocabulary: Vocabulary,
    *,
    z_loss: float = 0.0,
    block_logits: int = BLOCK_LOGITS,
) -> torch.Tensor:
    """Loss of each token, fp32 [tokens]: hidden [tokens, width], weight [rows, width], labels [tokens].

    The gradient is taken together with the loss, for which all tokens that count have to be given the same weight by
    what follows, as in a sum or a mean; otherwise every gradient becomes NaN, since it would be wrong. The gradient of
    `hidden` is this rank's share: the caller sums it over the ranks that hold other rows.
    """
    losses: torch.Tensor = _LinearLoss.apply(hidden, weight, labels, vocabulary, z_loss, block_logits)  # type: ignore[no-untyped-call]
    return losses


def logits_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary, *, z_loss: float = 0.0
) -> torch.Tensor:
    """The same from this rank's logits, [tokens, rows]; tokens may have any weights."""
    losses: torch.Tensor = _LogitsLoss.apply(logits, labels, vocabulary, z_loss)  # type: ignore[no-untyped-call]
    return losses


# --------------------------------------------------------------------------- one block of logits


def _normalizer(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log Z, logit of the label) of each token over the whole vocabulary."""
    here, total, chosen = _statistics(logits, labels, vocabulary.start)
    largest = here.clone()
    vocabulary.reduce(largest, dist.ReduceOp.MAX)
    sums = torch.stack([total * (here - largest).exp(), chosen])
    vocabulary.reduce(sums, dist.ReduceOp.SUM)
    return largest + sums[0].log(), sums[1]


def _losses(log_z: torch.Tensor, chosen: torch.Tensor, labels: torch.Tensor, z_loss: float) -> torch.Tensor:
    return (log_z - chosen + z_loss * log_z.square()) * (labels >= 0)


def _statistics(
    logits: torch.Tensor, labels: torch.Tensor, start: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Largest logit, sum of exp above it, and the label's logit (0 where it lies elsewhere), of this rank's rows."""
    if logits.is_cuda:
        from pipeline.training.softmax_kernels import softmax_statistics

        return softmax_statistics(logits, labels, start)
    wide = _wide(logits)
    largest = wide.max(dim=-1).values
    rows, held = _held(labels, logits.size(-1), start)
    return largest, (wide - largest[:, None]).exp().sum(dim=-1), wide.gather(1, rows[:, None]).squeeze(1) * held


def _gradient(
    logits: torch.Tensor, labels: torch.Tensor, log_z: torch.Tensor, weights: torch.Tensor, start: int, z_loss: float
) -> torch.Tensor:
    """weights * d loss / d logit = weights * (p * (1 + 2 z log Z) - [is the label]); may overwrite the logits."""
    if logits.is_cuda:
        from pipeline.training.softmax_kernels import softmax_gradient_

        return softmax_gradient_(logits, labels, start, log_z, weights, z_loss)
    gradient = (_wide(logits) - log_z[:, None]).exp() * (1 + 2 * z_loss * log_z)[:, None]
    rows, held = _held(labels, logits.size(-1), start)
    gradient.scatter_add_(1, rows[:, None], -held[:, None].to(gradient.dtype))
    return (gradient * weights[:, None]).to(logits.dtype)


def _held(labels: torch.Tensor, rows: int, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label's row on this rank (any row where it has none), and whether it has one."""
    local = labels - start
    held = (local >= 0) & (local < rows)
    return local.clamp(0, rows - 1), held


# --------------------------------------------------------------------------- with autograd


class _LogitsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary, z_loss: float) -> Any:
        log_z, chosen = _normalizer(logits, labels, vocabulary)
        ctx.save_for_backward(logits, labels, log_z)
        ctx.start, ctx.z_loss = vocabulary.start, z_loss
        return _losses(log_z, chosen, labels, z_loss)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        logits, labels, log_z = ctx.saved_tensors
        gradient = _gradient(logits.clone(), labels, log_z, upstream * (labels >= 0), ctx.start, ctx.z_loss)
        return gradient, None, None, None


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        vocabulary: Vocabulary,
        z_loss: float,
        block_logits: int,
    ) -> Any:
        learns = any(ctx.needs_input_grad[:2])
        losses = torch.empty(len(labels), dtype=_wide_type(weight), device=hidden.device)
        counted = (labels >= 0).to(losses.dtype)
        hidden_gradient = torch.empty_like(hidden) if learns else None
        weight_gradient: torch.Tensor | None = None
        for part in _blocks(hidden, weight, block_logits):
            logits = hidden[part] @ weight.t()
            log_z, chosen = _normalizer(logits, labels[part], vocabulary)
            losses[part] = _losses(log_z, chosen, labels[part], z_loss)
            if hidden_gradient is None:
                continue
            gradient = _gradient(logits, labels[part], log_z, counted[part], vocabulary.start, z_loss)
            torch.mm(gradient, weight, out=hidden_gradient[part])
            share = gradient.t() @ hidden[part]
            weight_gradient = share if weight_gradient is None else _wide(weight_gradient).add_(share)
        ctx.save_for_backward(hidden_gradient, weight_gradient, counted)
        ctx.weight_dtype = weight.dtype
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        hidden_gradient, weight_gradient, counted = ctx.saved_tensors
        scale = _common_weight(upstream, counted)
        weight_gradient = (weight_gradient * scale).to(ctx.weight_dtype)
        return (hidden_gradient * scale).to(hidden_gradient.dtype), weight_gradient, None, None, None, None


def _common_weight(upstream: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """The one weight of all tokens that count; NaN when they have several. Nothing waits for the device here."""
    scale = (upstream * counted).sum() / counted.sum().clamp(min=1)
    apart = ((upstream - scale) * counted).abs().max()
    return torch.where(apart <= _SAME * scale.abs(), scale, torch.nan)


def _blocks(hidden: torch.Tensor, weight: torch.Tensor, block_logits: int) -> Iterator[slice]:
    """Runs of tokens whose logits on this rank are at most `block_logits`, as equal as can be."""
    tokens, most = hidden.size(0), max(1, block_logits // weight.size(0))
    number = -(-tokens // most)
    edges = [tokens * index // number for index in range(number + 1)]
    return (slice(first, last) for first, last in pairwise(edges))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(_wide_type(values))


def _wide_type(values: torch.Tensor) -> torch.dtype:
    """fp32, or fp64 for what is wider already."""
    return torch.promote_types(values.dtype, torch.float32)
