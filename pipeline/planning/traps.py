"""What Megatron-Core takes without a word and then ignores or gets wrong, and keys that would have no effect.

Each was seen with megatron-core 0.16.1 unless its comment names another source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.planning.layout import Problem
from pipeline.planning.overlaps import derive_overlaps, gathers_parameters
from pipeline.types import (
    AmaxCompute,
    CrossEntropy,
    Decay,
    DecayShape,
    Dispatcher,
    Experiment,
    Layout,
    LowPrecision,
    RopeScalingKind,
    RouterScore,
    Sharding,
)

Trap = Callable[[Experiment, Layout], Iterator[Problem]]

OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Modules whose input fine-grained offload can move (megatron-core 0.16)."""
_LLAMA3_LENGTH = 8192


def check_traps(experiment: Experiment, layout: Layout) -> list[Problem]:
    """All problems at once."""
    return [problem for trap in _TRAPS for problem in trap(experiment, layout)]


# --------------------------------------------------------------------------- layout


def _experts(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    if experiment.model.moe is None:
        return
    if layout.ep == 1 and layout.etp != layout.tp:
        # Without ep the experts count as dense parameters, and their gradients are reduced over dp alone.
        yield Problem(
            "experts_without_ep",
            f"layout.etp: got {layout.etp} with tp {layout.tp} and ep 1, which leaves experts' gradients apart on tp "
            f"ranks; give layout.etp={layout.tp} or layout.ep of 2 or more",
        )
    if layout.ep > 1 and experiment.techniques.sharding is not Sharding.none:
        yield Problem(
            "fsdp_experts",
            f"techniques.sharding: with ep {layout.ep} Megatron-FSDP counts experts wrongly in the gradient norm, so "
            f"clips wrongly; give layout.ep=1 or techniques.sharding=none",
        )


def _latent(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    if experiment.model.mla is not None and layout.tp > 1 and not layout.sequence_parallel:
        yield Problem(
            "mla_sequence_parallel",
            f"layout.sequence_parallel: latent attention with tp {layout.tp} needs it, or the positions' gradient is "
            f"never summed over tp ranks; give layout.sequence_parallel=true",
        )


def _checkpoints(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    if experiment.techniques.sharding is not Sharding.none and experiment.recipe.checkpoint_every_steps:
        yield Problem(
            "fsdp_checkpoint",
            "recipe.checkpoint_every_steps: checkpoints of Megatron-FSDP can't be written by this version; give 0, or "
            "techniques.sharding=none",
        )


def _replicas(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    replicas, ranks = layout.shard_replicas, layout.dp * layout.cp
    if replicas == 1:
        return
    if not gathers_parameters(experiment):
        yield Problem(
            "shard_replicas",
            f"layout.shard_replicas: got {replicas}, but nothing is sharded; give optimizer.distributed=true",
        )
    if ranks % replicas:
        yield Problem("shard_replicas", f"layout.shard_replicas: {replicas} must divide dp x cp = {ranks}")


# --------------------------------------------------------------------------- overlaps


def _overlaps(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    asked, ranks = experiment.techniques, layout.dp * layout.cp
    if asked.overlap_grad_reduce and ranks == 1:
        yield Problem(
            "overlap_grad_reduce", "techniques.overlap_grad_reduce: one rank has nothing to reduce; leave it out"
        )
    if asked.overlap_param_gather:
        if not gathers_parameters(experiment):
            yield Problem(
                "overlap_param_gather",
                "techniques.overlap_param_gather: only a sharded optimizer gathers; give optimizer.distributed=true",
            )
        elif not derive_overlaps(experiment, layout).grad_reduce:
            yield Problem(
                "overlap_param_gather",
                "techniques.overlap_param_gather: goes with techniques.overlap_grad_reduce=true alone; give both",
            )
    if asked.overlap_p2p and layout.vp == 1:
        yield Problem("overlap_p2p", "techniques.overlap_p2p: only interleaved stages overlap sends; give layout.vp")
    if asked.overlap_tp and not layout.sequence_parallel:
        # Ignored by Megatron-Core.
        yield Problem(
            "overlap_tp", "techniques.overlap_tp: needs layout.sequence_parallel=true and layout.tp of 2 or more"
        )
    if asked.overlap_tp and experiment.model.mla is not None:
        yield Problem("overlap_tp", "techniques.overlap_tp: latent attention has no buffers for it; leave it false")


# --------------------------------------------------------------------------- model


def _positions(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    model = experiment.model
    scaling = model.rope_scaling
    if scaling is None:
        return
    if model.learned_positions:
        yield Problem("rope_scaling", "model.rope_scaling: learned positions have no rotation; leave it out")
    if model.mla is not None and scaling.kind is not RopeScalingKind.yarn:
        yield Problem("rope_scaling", f"model.rope_scaling.kind: latent attention takes yarn, got {scaling.kind.value}")
    if scaling.kind is RopeScalingKind.llama3 and scaling.original_length != _LLAMA3_LENGTH:
        yield Problem(
            "rope_scaling",
            f"model.rope_scaling.original_length: Megatron-Core's llama3 scaling knows {_LLAMA3_LENGTH} alone, got "
            f"{scaling.original_length}",
        )
    if scaling.factor < 1:
        yield Problem("rope_scaling", f"model.rope_scaling.factor: got {scaling.factor}; allowed: 1 or more")


def _windows(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    model = experiment.model
    if model.sliding_window is not None and model.full_attention_every == 1:
        yield Problem(
            "sliding_window",
            "model.sliding_window: has no effect while model.full_attention_every is 1; give 2 or more",
        )


def _router(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    moe, techniques = experiment.model.moe, experiment.techniques
    if moe is None:
        if techniques.moe_dispatcher is not Dispatcher.alltoall or techniques.grouped_gemm is not None:
            yield Problem(
                "dense",
                f"techniques.moe_dispatcher, grouped_gemm: {experiment.model.name} has no experts; leave them out",
            )
        return
    if moe.router_bias and moe.router_score is RouterScore.softmax and not moe.expert_bias:
        yield Problem(
            "router_bias",
            "model.moe.router_bias: with softmax scores Megatron-Core has it only where experts have biases too; give "
            "model.moe.expert_bias=true or router_score=sigmoid",
        )
    groups, chosen = moe.router_groups, moe.router_groups_per_token
    if (groups is None) != (chosen is None):
        yield Problem("router_groups", "model.moe.router_groups, router_groups_per_token: give both or none")
    elif groups is not None and chosen is not None and (moe.num_experts % groups or not 0 < chosen <= groups):
        yield Problem(
            "router_groups",
            f"model.moe.router_groups: {moe.num_experts} experts, {groups} groups of which a token takes {chosen}; "
            f"groups must divide the experts",
        )


# --------------------------------------------------------------------------- precision


def _kept_layers(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    precision = experiment.precision
    kept = precision.first_layers + precision.last_layers
    most = experiment.model.num_layers // layout.pp
    for name, layers in (("first_layers", precision.first_layers), ("last_layers", precision.last_layers)):
        if not 0 <= layers <= most:
            yield Problem(
                "kept_layers", f"precision.{name}: got {layers}; allowed: 0 to the {most} layers of a pipeline stage"
            )
    if precision.low_precision is LowPrecision.fp8_delayed and kept:
        yield Problem(
            "delayed_layers",
            "precision.first_layers, last_layers: fp8_delayed can't leave layers out; give fp8_current or 0",
        )


def _precision(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    precision = experiment.precision
    low, kept = precision.low_precision, precision.first_layers + precision.last_layers
    if low is None and (kept or not precision.cache_weights):
        yield Problem(
            "without_low_precision",
            "precision.first_layers, last_layers, cache_weights: only with precision.low_precision; leave them out",
        )
    if low is not LowPrecision.fp8_delayed and (
        precision.amax_history != 1024 or precision.amax_compute is not AmaxCompute.max
    ):
        yield Problem("amax", "precision.amax_history, amax_compute: only fp8_delayed has a history; leave them out")
    if precision.low_precision_output and low is not LowPrecision.mxfp8:
        yield Problem("output", "precision.low_precision_output: Megatron-Core has it for mxfp8 alone; leave it false")
    if precision.low_precision_params and low is LowPrecision.nvfp4:
        yield Problem("params", "precision.low_precision_params: not with nvfp4; leave it false")
    if precision.low_precision_params and experiment.recipe.layout_invariant_weights:
        # Master weights come from what layers were built with, not from what is written over it.
        yield Problem(
            "invariant_params",
            "recipe.layout_invariant_weights: not with precision.low_precision_params; leave one of them false",
        )


# --------------------------------------------------------------------------- loss, optimizer, offload


def _loss(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    z_loss, kind = experiment.optimizer.z_loss, experiment.techniques.cross_entropy
    if z_loss < 0:
        yield Problem("z_loss", f"optimizer.z_loss: got {z_loss}; allowed: 0 or more")
    if z_loss and kind not in {CrossEntropy.unfused, CrossEntropy.linear}:
        yield Problem(
            "z_loss",
            f"optimizer.z_loss: {kind.value} doesn't give log Z; give techniques.cross_entropy=linear or unfused",
        )


def _muon(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    if experiment.optimizer.muon is None:
        return
    techniques = experiment.techniques
    if techniques.sharding is not Sharding.none:
        yield Problem("muon", "optimizer.muon: needs whole matrices; give techniques.sharding=none")
    if techniques.optimizer_offload or techniques.param_remainders:
        yield Problem(
            "muon", "optimizer.muon: goes with neither optimizer_offload nor param_remainders; leave them out"
        )
    if experiment.model.mla is not None and experiment.optimizer.muon.split_qkv:
        yield Problem("muon", "optimizer.muon.split_qkv: latent attention has no such matrix; give false")


def _schedule(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    spec, steps = experiment.optimizer, experiment.recipe.steps
    if spec.decay is not Decay.wsd and (spec.decay_steps is not None or spec.decay_shape is not DecayShape.linear):
        yield Problem("decay", "optimizer.decay_steps, decay_shape: only with optimizer.decay=wsd; leave them out")
    left = steps - spec.warmup_steps
    if spec.decay is Decay.wsd and spec.decay_steps is not None and not 0 < spec.decay_steps <= left:
        yield Problem(
            "decay", f"optimizer.decay_steps: got {spec.decay_steps}; allowed: 1 to the {left} steps after warm-up"
        )


def _offload(experiment: Experiment, _: Layout) -> Iterator[Problem]:
    techniques = experiment.techniques
    if techniques.optimizer_offload and not experiment.optimizer.distributed:
        yield Problem("optimizer_offload", "techniques.optimizer_offload: needs optimizer.distributed=true")
    if techniques.optimizer_offload and techniques.param_remainders:
        yield Problem(
            "optimizer_offload",
            "techniques.optimizer_offload: keeps whole master weights; leave param_remainders false",
        )
    modules = techniques.offload_modules
    for module in modules:
        if module not in OFFLOADED:
            yield Problem(
                "offload_modules", f"techniques.offload_modules: no {module}; there are {', '.join(OFFLOADED)}"
            )
        elif module in {"expert_fc1", "moe_act"} and experiment.model.moe is None:
            yield Problem("offload_modules", f"techniques.offload_modules: {experiment.model.name} has no {module}")
    if "attn_proj" in modules and "core_attn" not in modules:
        yield Problem("offload_modules", "techniques.offload_modules: attn_proj goes with core_attn alone; give both")
    if modules and techniques.activation_offload_layers:
        yield Problem(
            "offload_modules", "techniques.offload_modules: not beside activation_offload_layers; use one of them"
        )


_TRAPS: tuple[Trap, ...] = (
    _experts,
    _latent,
    _checkpoints,
    _replicas,
    _overlaps,
    _positions,
    _windows,
    _router,
    _kept_layers,
    _precision,
    _loss,
    _muon,
    _schedule,
    _offload,
)
