"""Whole tensors into a chunk of the model and out of it."""

from __future__ import annotations

from pathlib import Path

import torch
from megatron.core.models.gpt import GPTModel

from pipeline.training.huggingface import check_config, whole_tensor
from pipeline.training.megatron.weights import canonical_name, put_part
from pipeline.training.weights_folder import WeightsFolder
from pipeline.types import ModelSpec


def load_weights(chunk: GPTModel, model: ModelSpec, folder: Path) -> None:
    """Overwrites a chunk's weights with this rank's part of a Hugging Face folder's, read tensor by tensor.

    Raises DataError when the folder is of another model.
    """
    with WeightsFolder(folder) as weights:
        check_config(weights.config(), model, where=f"recipe.init_from: {folder / 'config.json'}")
        for name, parameter in chunk.named_parameters():
            whole = whole_tensor(canonical_name(chunk, name), model, weights.read, rows=chunk.vocab_size)
            put_part(chunk, name, parameter, whole)


def whole_weights(chunk: GPTModel) -> dict[str, torch.Tensor]:
    """All weights of a model that one rank holds whole, by their names in the whole model."""
    return {canonical_name(chunk, name): parameter.detach() for name, parameter in chunk.named_parameters()}
