"""What a worker refuses before it loads anything: keys without effect, and layouts that Megatron-Core gets wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from pipeline.errors import PlanRefused
from pipeline.model_math import has_linear_bias
from pipeline.planning.data_rules import data_problems
from pipeline.planning.layout import check_layout
from pipeline.types import CrossEntropy, DType, Experiment, Layout

OBEYED = {
    "model": frozenset(
        {
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "vocab_size",
            "max_sequence_length",
            "head_dim",
            "normalization",
            "activation",
            "tied_embeddings",
            "rope_base",
            "qk_norm",
            "linear_bias",
            "qkv_bias",
            "learned_positions",
        }
    ),
    "precision": frozenset({"dtype"}),
    "optimizer": frozenset(
        {
            "lr",
            "min_lr",
            "warmup_steps",
            "decay",
            "weight_decay",
            "beta1",
            "beta2",
            "eps",
            "clip_grad",
            "distributed",
        }
    ),
    "recipe": frozenset(
        {
            "steps",
            "sequence_length",
            "micro_batch",
            "global_batch",
            "init_from",
            "lora",
            "eval_every",
            "eval_batches",
            "checkpoint_every_steps",
            "checkpoint_keep_last",
            "checkpoint_keep_every_steps",
            "deterministic",
        }
    ),
    "data": frozenset(
        {
            "kind",
            "path",
            "blend",
            "validation_fraction",
            "validation_path",
            "reset_positions",
            "reset_attention",
            "tokenizer",
        }
    ),
    "techniques": frozenset({"cross_entropy"}),
    "layout": frozenset(
        {
            "nodes",
            "ranks_per_node",
            "tp",
            "pp",
            "cp",
            "dp",
            "sequence_parallel",
            "micro_batch",
            "global_batch",
            "num_microbatches",
        }
    ),
}
"""Keys that workers of this version obey; any other has to stand at its default."""

_LABELS = frozenset({"name"})


def refuse_unsupported(experiment: Experiment, layout: Layout) -> None:
    """Raises PlanRefused naming every key whose value would not be obeyed: a key without effect would be a lie."""
    groups = {group: getattr(experiment, group) for group in OBEYED} | {"layout": layout}
    broken = [
        *(line for group, values in groups.items() for line in _without_effect(group, values)),
        *_half_obeyed(experiment),
        *data_problems(experiment, layout),
    ]
    if broken:
        raise PlanRefused("not trainable by this version: " + "; ".join(broken))


def refuse_broken_rules(experiment: Experiment, layout: Layout) -> None:
    """Raises PlanRefused when a plan that reached this far breaks the planner's rules after all.

    Megatron-Core itself would round, or fail in the middle of the first step, for some of them.
    """
    problems = check_layout(layout, experiment.model, experiment.recipe)
    if problems:
        raise PlanRefused("; ".join(problem.message for problem in problems))


def _without_effect(group: str, values: Any) -> Iterator[str]:
    for field in fields(values):
        value, default = getattr(values, field.name), _default(field)
        if field.name not in OBEYED[group] | _LABELS and value != default:
            yield _describe(f"{group}.{field.name}", value, (default,))


def _half_obeyed(experiment: Experiment) -> Iterator[str]:
    """Keys that are obeyed, but not at every value."""
    bias = has_linear_bias(experiment.model)
    for key, value, allowed in (
        ("precision.dtype", experiment.precision.dtype, (DType.fp32, DType.bf16)),
        (
            "techniques.cross_entropy",
            experiment.techniques.cross_entropy,
            (CrossEntropy.unfused, CrossEntropy.native),
        ),
        # Megatron-Core can add a bias to the QKV projection alone, but not leave one out.
        ("model.qkv_bias", experiment.model.qkv_bias, (None, True) if bias else (None, False, True)),
    ):
        if value not in allowed:
            yield _describe(key, value, allowed)


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _describe(key: str, got: object, allowed: tuple[object, ...]) -> str:
    return f"{key}={_shown(got)} (allowed: {', '.join(map(_shown, allowed))})"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__ if is_dataclass(value) else str(value)
