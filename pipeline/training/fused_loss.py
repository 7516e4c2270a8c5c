"""The loss of a language model whose output layer is divided by rows of the vocabulary over ranks.

Per token: -log p(label), plus z * log(Z)^2 for a z-loss (PaLM, arXiv:2204.02311, section 5). `linear_loss` computes
the logits itself, a few tokens at a time, and never holds them all; backward computes them a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_CHUNK_LOGITS = 1 << 26
"""Logits held at once, fp32: 256 MiB."""


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
    chunk_logits: int = _CHUNK_LOGITS,
) -> torch.Tensor:
    """Loss of each token, fp32 [tokens]: hidden [tokens, width], weight [rows, width], labels [tokens].

    The gradient of `hidden` is this rank's share: the caller sums it over the ranks that hold other rows.
    """
    losses: torch.Tensor = _LinearLoss.apply(hidden, weight, labels, vocabulary, z_loss, chunk_logits)  # type: ignore[no-untyped-call]
    return losses


def logits_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary, *, z_loss: float = 0.0
) -> torch.Tensor:
    """The same from this rank's logits, [tokens, rows]."""
    losses: torch.Tensor = _LogitsLoss.apply(logits, labels, vocabulary, z_loss)  # type: ignore[no-untyped-call]
    return losses


# --------------------------------------------------------------------------- one block of logits


def _normalizer(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log Z, logit of the label) of each token over the whole vocabulary; logits are fp32."""
    largest = logits.max(dim=-1).values
    vocabulary.reduce(largest, dist.ReduceOp.MAX)
    total = (logits - largest[:, None]).exp().sum(dim=-1)
    rows, held = _held(labels, logits.size(-1), vocabulary)
    chosen = logits.gather(1, rows[:, None]).squeeze(1) * held
    sums = torch.stack([total, chosen])
    vocabulary.reduce(sums, dist.ReduceOp.SUM)
    return largest + sums[0].log(), sums[1]


def _held(labels: torch.Tensor, rows: int, vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """Each label's row on this rank (any row where it has none), and whether it has one."""
    local = labels - vocabulary.start
    held = (local >= 0) & (local < rows)
    return local.clamp(0, rows - 1), held


def _losses(log_z: torch.Tensor, chosen: torch.Tensor, z_loss: float) -> torch.Tensor:
    return log_z - chosen + z_loss * log_z.square()


def _logits_gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    log_z: torch.Tensor,
    upstream: torch.Tensor,
    vocabulary: Vocabulary,
    z_loss: float,
) -> torch.Tensor:
    """d loss / d logit = p * (1 + 2 z log Z) - [is the label], times what comes from above."""
    gradient = (logits - log_z[:, None]).exp() * (1 + 2 * z_loss * log_z)[:, None]
    rows, held = _held(labels, logits.size(-1), vocabulary)
    gradient.scatter_add_(1, rows[:, None], -held[:, None].to(gradient.dtype))
    return gradient * upstream[:, None]


# --------------------------------------------------------------------------- with autograd


class _LogitsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, vocabulary: Vocabulary, z_loss: float) -> Any:
        log_z, chosen = _normalizer(_wide(logits), labels, vocabulary)
        ctx.save_for_backward(logits, labels, log_z)
        ctx.vocabulary, ctx.z_loss = vocabulary, z_loss
        return _losses(log_z, chosen, z_loss)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        logits, labels, log_z = ctx.saved_tensors
        gradient = _logits_gradient(_wide(logits), labels, log_z, upstream, ctx.vocabulary, ctx.z_loss)
        return gradient.to(logits.dtype), None, None, None


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        vocabulary: Vocabulary,
        z_loss: float,
        chunk_logits: int,
    ) -> Any:
        found = [
            _normalizer(_wide(hidden[part] @ weight.t()), labels[part], vocabulary)
            for part in _chunks(hidden, weight, chunk_logits)
        ]
        log_z, chosen = (torch.cat(values) for values in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, labels, log_z)
        ctx.vocabulary, ctx.z_loss, ctx.chunk_logits = vocabulary, z_loss, chunk_logits
        return _losses(log_z, chosen, z_loss)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        hidden, weight, labels, log_z = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros_like(weight, dtype=_wide_type(weight))
        for part in _chunks(hidden, weight, ctx.chunk_logits):
            logits = _wide(hidden[part] @ weight.t())
            gradient = _logits_gradient(
                logits, labels[part], log_z[part], upstream[part], ctx.vocabulary, ctx.z_loss
            ).to(weight.dtype)
            hidden_gradient[part] = gradient @ weight
            weight_gradient += gradient.t() @ hidden[part]
        return hidden_gradient, weight_gradient.to(weight.dtype), None, None, None, None


def _chunks(hidden: torch.Tensor, weight: torch.Tensor, chunk_logits: int) -> Iterator[slice]:
    """Runs of tokens whose logits on this rank are at most `chunk_logits`."""
    step = max(1, chunk_logits // weight.size(0))
    return (slice(start, start + step) for start in range(0, hidden.size(0), step))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(_wide_type(values))


def _wide_type(values: torch.Tensor) -> torch.dtype:
    """fp32, or fp64 for what is wider already."""
    return torch.promote_types(values.dtype, torch.float32)
