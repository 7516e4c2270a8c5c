"""One step up to the optimizer: gradients cleared, accumulated over micro-batches, and reduced over ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from pipeline.training.data import Batch
from pipeline.training.fused_loss import NOT_LEARNT
from pipeline.training.megatron.model import Model
from pipeline.training.megatron.sharding import Wrapped
from pipeline.types import Layout


def clear_gradients(model: Model, optimizer: MegatronOptimizer) -> None:
    """Empties both places that hold gradients: the reduced ones and those the optimizer was handed."""
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()


def forward_backward(
    model: Model, batches: Iterator[Batch], layout: Layout, sequence_length: int
) -> list[torch.Tensor]:
    """Adds up the gradient of the mean loss over `layout.num_microbatches` batches and reduces it over ranks.

    Returns for each micro-batch the sum of its tokens' losses and their number, float64 of shape [2], on ranks of the
    last stage; nothing on others.
    """
    return _run(model, batches, layout, sequence_length, forward_only=False)


def forward_only(model: Model, batches: Iterator[Batch], layout: Layout, sequence_length: int) -> list[torch.Tensor]:
    """As `forward_backward`, without gradients."""
    for chunk in model:
        chunk.eval()
    with torch.no_grad():
        losses = _run(model, batches, layout, sequence_length, forward_only=True)
    for chunk in model:
        chunk.train()
    return losses


def _run(
    model: Model, batches: Iterator[Batch], layout: Layout, sequence_length: int, *, forward_only: bool
) -> list[torch.Tensor]:
    run = get_forward_backward_func()
    losses: list[torch.Tensor] = run(
        forward_step_func=_forward_step,
        # Each chunk goes through all micro-batches at its own pace.
        data_iterator=list(itertools.tee(batches, len(model))),
        model=model,
        num_microbatches=layout.num_microbatches,
        seq_length=sequence_length,
        micro_batch_size=layout.micro_batch,
        forward_only=forward_only,
    )
    return losses


def _forward_step(batches: Iterator[Batch], model: Wrapped) -> tuple[torch.Tensor, Any]:
    batch = next(batches)
    labels = batch.labels if batch.targets is None else batch.labels.masked_fill(batch.targets == 0, NOT_LEARNT)
    losses = model(batch.tokens, batch.positions, attention_mask(batch), labels=labels)
    return losses, partial(_sum_of_losses, batch.targets)


def attention_mask(batch: Batch) -> torch.Tensor | None:
    """What each token (rows) must not see, bool of shape [micro_batch, 1, sequence, sequence]: tokens of other
    documents; None where documents aren't kept apart. That tokens don't see what follows them needs no mask."""
    if batch.documents is None:
        return None
    return (batch.documents[:, None, :, None] != batch.documents[:, None, None, :]).contiguous()


def _sum_of_losses(
    targets: torch.Tensor | None, token_losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss as Megatron wants it, a sum and its number of tokens, and both to report."""
    learnt = token_losses.float() if targets is None else token_losses.float() * targets
    total = learnt.sum()
    # Made on the device: a copy from the host would wait for all that the device has still to do.
    count = torch.full((), token_losses.numel(), device=total.device) if targets is None else targets.sum()
    return total, count.int(), torch.stack([total.detach().double(), count.double()])


def gradient_sum(model: Model, device: torch.device) -> torch.Tensor:
    """Sum over the gradients on this rank, reduced ones where they are, a float64 scalar; it isn't finite when one of
    them isn't."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for chunk in model:
        for gradient in _gradients(chunk):
            total += gradient.sum(dtype=torch.float64)
    return total


def timed_configs(model: Model, optimizer: MegatronOptimizer) -> list[Any]:
    """The configurations whose `timers` Megatron calls around the parts of a step."""
    return [*(chunk.config for chunk in model), optimizer.config]


def _gradients(chunk: Wrapped) -> Iterator[torch.Tensor]:
    if isinstance(chunk, DistributedDataParallel):
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            yield buffer.grad_data
        return
    # Megatron-FSDP hands each parameter its shard of the gradient.
    for parameter in chunk.parameters():
        if parameter.grad is not None:
            yield getattr(parameter.grad, "_local_tensor", parameter.grad)
