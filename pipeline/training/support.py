"""What a worker refuses before it loads anything: keys without effect, and layouts that Megatron-Core gets wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from pipeline.errors import PlanRefused
from pipeline.model_math import has_linear_bias
from pipeline.planning.data_rules import data_problems
from pipeline.planning.estimates import job_of
from pipeline.planning.layout import check_layout, uses_gpus
from pipeline.planning.rules import check_job, least_capability
from pipeline.planning.traps import check_traps
from pipeline.planning.tuning_rules import tuning_problems
from pipeline.types import CrossEntropy, Dispatcher, DType, Experiment, Layout, Precision, Recompute

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
            "norm_eps",
            "activation",
            "tied_embeddings",
            "rope_base",
            "rope_scaling",
            "moe",
            "mla",
            "qk_norm",
            "linear_bias",
            "qkv_bias",
            "output_bias",
            "sinks",
            "sliding_window",
            "full_attention_every",
            "learned_positions",
            "hidden_dropout",
        }
    ),
    "precision": frozenset(
        {
            "dtype",
            "low_precision",
            "low_precision_params",
            "low_precision_output",
            "cache_weights",
            "amax_history",
            "amax_compute",
            "first_layers",
            "last_layers",
        }
    ),
    "optimizer": frozenset(
        {
            "lr",
            "min_lr",
            "warmup_steps",
            "decay",
            "decay_steps",
            "decay_shape",
            "weight_decay",
            "no_decay",
            "beta1",
            "beta2",
            "eps",
            "clip_grad",
            "z_loss",
            "distributed",
            "muon",
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
            "layout_invariant_weights",
        }
    ),
    "data": frozenset(
        {
            "kind",
            "path",
            "blend",
            "validation_fraction",
            "validation_path",
            "stage_dir",
            "reset_positions",
            "reset_attention",
            "tokenizer",
        }
    ),
    "techniques": frozenset(
        {
            "recompute",
            "recompute_modules",
            "recompute_method",
            "recompute_num_layers",
            "sharding",
            "grads",
            "moments",
            "param_remainders",
            "cross_entropy",
            "cp_comm",
            "moe_dispatcher",
            "grouped_gemm",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "overlap_p2p",
            "overlap_tp",
            "optimizer_offload",
            "activation_offload_layers",
            "offload_modules",
            "expandable_segments",
        }
    ),
    "layout": frozenset(
        {
            "nodes",
            "ranks_per_node",
            "tp",
            "pp",
            "vp",
            "cp",
            "dp",
            "ep",
            "etp",
            "chunk_layers",
            "shard_replicas",
            "sequence_parallel",
            "micro_batch",
            "global_batch",
            "num_microbatches",
        }
    ),
}
"""Keys that workers of this version obey; any other has to stand at its default."""

GPU_ONLY = {
    "precision": frozenset(
        {
            "low_precision",
            "low_precision_params",
            "low_precision_output",
            "cache_weights",
            "amax_history",
            "amax_compute",
            "first_layers",
            "last_layers",
        }
    ),
    "recipe": frozenset({"layout_invariant_weights"}),
    "techniques": frozenset(
        {
            "moments",
            "param_remainders",
            "cp_comm",
            "grouped_gemm",
            "overlap_tp",
            "optimizer_offload",
            "activation_offload_layers",
            "offload_modules",
            "expandable_segments",
        }
    ),
}
"""Keys of those that need a GPU, or that mean nothing without one."""

_LABELS = frozenset({"name"})


def refuse_unsupported(experiment: Experiment, layout: Layout) -> None:
    """Raises PlanRefused naming every key whose value would not be obeyed: a key without effect would be a lie."""
    groups = {group: getattr(experiment, group) for group in OBEYED} | {"layout": layout}
    broken = [
        *(line for group, values in groups.items() for line in _off_default(group, values, _unknown(group, values))),
        *_half_obeyed(experiment),
        *data_problems(experiment, layout),
        *tuning_problems(experiment),
    ]
    if broken:
        raise PlanRefused("not trainable by this version: " + "; ".join(broken))
    if not uses_gpus(experiment):
        _refuse_on_cpu(experiment, layout)


def _refuse_on_cpu(experiment: Experiment, layout: Layout) -> None:
    broken = [
        *(line for group, keys in GPU_ONLY.items() for line in _off_default(group, getattr(experiment, group), keys)),
        *_half_obeyed_on_cpu(experiment, layout),
    ]
    if broken:
        raise PlanRefused("not trainable on a CPU: " + "; ".join(broken))


def refuse_broken_rules(experiment: Experiment, layout: Layout) -> None:
    """Raises PlanRefused when a plan that reached this far breaks the planner's rules after all.

    Megatron-Core itself would round, or fail in the middle of the first step, for some of them.
    """
    problems = [
        *check_layout(layout, experiment.model, experiment.recipe),
        *check_job(job_of(experiment, layout)),
        *check_traps(experiment, layout),
    ]
    if problems:
        raise PlanRefused("; ".join(problem.message for problem in problems))


def refuse_missing_format(precision: Precision, capability: tuple[int, int]) -> None:
    """Raises PlanRefused when the GPU that is really there, of this compute capability, lacks the format."""
    low = precision.low_precision
    if low is None:
        return
    needed, found = least_capability(low), 10 * capability[0] + capability[1]
    if found < needed:
        raise PlanRefused(
            f"precision.low_precision: {low.value} needs compute capability {needed / 10:g}, the GPU of this node has "
            f"{found / 10:g}; the hardware profile says otherwise: check hardware=NAME"
        )


def _unknown(group: str, values: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(values)) - OBEYED[group] - _LABELS


def _off_default(group: str, values: Any, names: frozenset[str]) -> Iterator[str]:
    for field in fields(values):
        value, default = getattr(values, field.name), _default(field)
        if field.name in names and value != default:
            yield _describe(f"{group}.{field.name}", value, (default,))


def _half_obeyed(experiment: Experiment) -> Iterator[str]:
    """Keys that are obeyed, but not at every value."""
    model, moe = experiment.model, experiment.model.moe
    # Megatron-Core has one switch for the biases of all linear layers and one more for the QKV projection.
    bias = moe.expert_bias if moe is not None else has_linear_bias(model)
    output_bias = has_linear_bias(model) if model.output_bias is None else model.output_bias
    for key, value, allowed in (
        ("precision.dtype", experiment.precision.dtype, (DType.fp32, DType.bf16)),
        ("model.qkv_bias", model.qkv_bias, (True,) if moe and bias else (None, True) if bias else (None, False, True)),
        ("model.output_bias", output_bias, (bias,)),
        *((("model.moe.router_bias", moe.router_bias, (True,)),) if moe and bias else ()),
        *((("model.moe.shared_ffn_hidden_size", moe.shared_ffn_hidden_size, (0,)),) if moe and bias else ()),
    ):
        if value not in allowed:
            yield _describe(key, value, allowed)


def _half_obeyed_on_cpu(experiment: Experiment, layout: Layout) -> Iterator[str]:
    techniques = experiment.techniques
    own = (CrossEntropy.unfused, CrossEntropy.native, CrossEntropy.linear)
    dispatchers = (Dispatcher.alltoall, Dispatcher.allgather) if layout.etp == 1 else (Dispatcher.allgather,)
    if techniques.cross_entropy not in own:
        yield _describe("techniques.cross_entropy", techniques.cross_entropy, own)
    # gloo gathers parts of equal size alone.
    if experiment.model.moe is not None and techniques.moe_dispatcher not in dispatchers:
        yield _describe("techniques.moe_dispatcher", techniques.moe_dispatcher, dispatchers)
    moe = experiment.model.moe
    if moe is not None and moe.expert_bias and layout.ep == 1:
        yield "model.moe.expert_bias: without Transformer Engine its gradient needs layout.ep of 2 or more"
    if techniques.recompute is Recompute.selective and "moe_act" in techniques.recompute_modules:
        yield "techniques.recompute_modules: moe_act needs grouped GEMM; leave it out"


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _describe(key: str, got: object, allowed: tuple[object, ...]) -> str:
    return f"{key}={_shown(got)} (allowed: {', '.join(map(_shown, allowed))})"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__ if is_dataclass(value) else str(value)
