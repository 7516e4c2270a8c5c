"""Builds this rank's part of the model: its chunks, each with its loss, its first weights and its gradient buffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.training.backend import Backend
from pipeline.training.megatron.config import transformer_config
from pipeline.training.megatron.layers import layer_specs
from pipeline.training.megatron.loading import load_weights
from pipeline.training.megatron.lora import add_adapters
from pipeline.training.megatron.losses import use_own_loss
from pipeline.training.megatron.sharding import Wrapped, connect, wrap
from pipeline.training.megatron.stack import require_features
from pipeline.training.megatron.weights import draw_weights
from pipeline.training.tp_overlap import start_tp_overlap
from pipeline.types import Experiment, ModelSpec, Plan, RopeScaling, RopeScalingKind

Model: TypeAlias = list[Wrapped]
"""The chunks of this rank's pipeline stage in the model's order: one, or `layout.vp` of them."""


def build_model(experiment: Experiment, plan: Plan, backend: Backend) -> Model:
    """This rank's part of the model, with its gradient buffers, on the backend's device.

    Raises UserError when the installed Megatron-Core lacks what the recipe asks for.
    """
    require_features(experiment)
    if experiment.techniques.overlap_tp:
        start_tp_overlap(experiment, plan.layout)
    config = transformer_config(experiment, plan.layout, backend)
    chunks = [_start(experiment, plan, config, backend, vp_stage=stage) for stage in _chunk_numbers(plan)]
    model = [wrap(experiment, plan.layout, config, chunk, backend, first=chunk is chunks[0]) for chunk in chunks]
    connect(config, model)
    return model


def build_whole(experiment: Experiment, plan: Plan, backend: Backend) -> GPTModel:
    """The whole model on this rank alone, its weights yet to be loaded, without gradient buffers."""
    config = transformer_config(experiment, plan.layout, backend)
    config.perform_initialization = False
    model = _chunk(experiment, plan, config, backend, vp_stage=None)
    if experiment.recipe.lora.rank:
        add_adapters(model, experiment.recipe.lora, seed=experiment.seed)
    return model.to(config.params_dtype)


def _start(
    experiment: Experiment, plan: Plan, config: TransformerConfig, backend: Backend, *, vp_stage: int | None
) -> torch.nn.Module:
    """A chunk with the weights it starts with."""
    model = _chunk(experiment, plan, config, backend, vp_stage=vp_stage)
    _set_weights(model, experiment, backend)
    module: torch.nn.Module = Float16Module(config, model) if config.bf16 else model
    return module


def _chunk_numbers(plan: Plan) -> Iterator[int | None]:
    return iter(range(plan.layout.vp)) if plan.layout.vp > 1 else iter([None])


def _chunk(
    experiment: Experiment, plan: Plan, config: TransformerConfig, backend: Backend, *, vp_stage: int | None
) -> GPTModel:
    model = GPTModel(
        config=config,
        transformer_layer_spec=layer_specs(config, backend.parts, vp_stage=vp_stage),
        vocab_size=plan.padded_vocab_size,
        max_sequence_length=experiment.model.max_sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        share_embeddings_and_output_weights=experiment.model.tied_embeddings,
        position_embedding_type=_positions(experiment.model),
        rotary_base=experiment.model.rope_base,
        rope_scaling=_scaling(experiment.model, RopeScalingKind.llama3) is not None,
        rope_scaling_factor=_factor(experiment.model, RopeScalingKind.llama3) or 1.0,
        seq_len_interpolation_factor=_factor(experiment.model, RopeScalingKind.linear),
        vp_stage=vp_stage,
    ).to(backend.device)
    use_own_loss(model, experiment)
    return model


def _set_weights(model: GPTModel, experiment: Experiment, backend: Backend) -> None:
    """The weights a chunk starts with, where Megatron's own draw isn't wanted, and what is trained of them."""
    recipe = experiment.recipe
    if recipe.init_from is not None:
        load_weights(model, experiment.model, Path(recipe.init_from))
    elif backend.is_cpu or recipe.layout_invariant_weights:
        draw_weights(model, seed=experiment.seed)
    if recipe.lora.rank:
        add_adapters(model, recipe.lora, seed=experiment.seed)


def _positions(model: ModelSpec) -> str:
    if model.learned_positions:
        return "learned_absolute"
    # Latent attention has rotary embeddings of its own, which its configuration describes.
    return "yarn" if model.mla is None and _scaling(model, RopeScalingKind.yarn) else "rope"


def _scaling(model: ModelSpec, kind: RopeScalingKind) -> RopeScaling | None:
    scaling = model.rope_scaling
    return scaling if scaling is not None and scaling.kind is kind else None


def _factor(model: ModelSpec, kind: RopeScalingKind) -> float | None:
    scaling = _scaling(model, kind)
    return scaling.factor if scaling else None
