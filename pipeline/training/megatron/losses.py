"""Puts our own losses in place of Megatron-Core's where a recipe asks for what those can't do."""

from __future__ import annotations

import functools
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)

from pipeline.training.fused_loss import Vocabulary, linear_loss, logits_loss
from pipeline.types import CrossEntropy, Experiment


def use_own_loss(model: GPTModel, experiment: Experiment) -> None:
    """Replaces the loss of a chunk that has the output layer, if the recipe wants ours."""
    z_loss = experiment.optimizer.z_loss
    if not model.post_process:
        return
    if experiment.techniques.cross_entropy is CrossEntropy.linear:
        # The output layer hands its input on; the loss multiplies it, a few tokens at a time.
        model.output_layer.__class__ = _DeferredOutput
        model.compute_language_model_loss = functools.partial(_loss_of_hidden, model, z_loss=z_loss)
    elif z_loss:
        model.compute_language_model_loss = functools.partial(_loss_of_logits, z_loss=z_loss)


class _DeferredOutput(ColumnParallelLinear):  # type: ignore[misc]  # Megatron is untyped to mypy
    def forward(self, input_: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return input_, None


def _loss_of_hidden(model: GPTModel, labels: torch.Tensor, hidden: torch.Tensor, *, z_loss: float) -> torch.Tensor:
    """[batch, sequence] from hidden [sequence (/ tp), batch, width]."""
    tied = model.share_embeddings_and_output_weights
    weight: torch.Tensor = model.shared_embedding_or_output_weight() if tied else model.output_layer.weight
    # Each rank's part of the vocabulary sees all tokens; what they want of the hidden state is summed on the way back.
    whole = (
        gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        if model.config.sequence_parallel
        else copy_to_tensor_model_parallel_region(hidden)
    )
    wanted = labels.transpose(0, 1).flatten()
    losses = linear_loss(whole.flatten(0, 1), weight, wanted, _vocabulary(weight.size(0)), z_loss=z_loss)
    return losses.view(labels.size(1), labels.size(0)).transpose(0, 1).contiguous()


def _loss_of_logits(labels: torch.Tensor, logits: torch.Tensor, *, z_loss: float) -> torch.Tensor:
    """[batch, sequence] from logits [sequence, batch, rows of this rank]."""
    wanted = labels.transpose(0, 1).flatten()
    losses = logits_loss(logits.flatten(0, 1), wanted, _vocabulary(logits.size(-1)), z_loss=z_loss)
    return losses.view(labels.size(1), labels.size(0)).transpose(0, 1).contiguous()


def _vocabulary(rows: int) -> Vocabulary:
    return Vocabulary(
        start=rows * parallel_state.get_tensor_model_parallel_rank(),
        group=parallel_state.get_tensor_model_parallel_group(),
    )
