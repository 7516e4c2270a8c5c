"""What Megatron-Core takes without a word and gets wrong, or ignores, is refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest
from build_probe import EXPERTS, all_changed
from training_workers import plan_for, tiny_experiment

from pipeline.planning.overlaps import derive_overlaps
from pipeline.planning.traps import check_traps
from pipeline.types import (
    AmaxCompute,
    CrossEntropy,
    Decay,
    DecayShape,
    Dispatcher,
    DType,
    LowPrecision,
    MlaSpec,
    MuonSpec,
    RopeScaling,
    RopeScalingKind,
    RouterScore,
    Sharding,
)

LATENTS = MlaSpec(kv_lora_rank=16, qk_nope_dim=8, qk_rope_dim=8, v_dim=8)
FP8 = {"precision.dtype": DType.bf16, "precision.low_precision": LowPrecision.fp8_current}
DELAYED = {**FP8, "precision.low_precision": LowPrecision.fp8_delayed}
GPUS = {"hardware.gpus_per_node": 8}

Keys = dict[str, object]
Sizes = dict[str, Any]

TRAPS: list[tuple[str, Keys, Sizes]] = [
    ("layout.etp: got 1 with tp 2", {"model.moe": EXPERTS}, {"tp": 2, "sequence_parallel": True}),
    ("clips wrongly", {"model.moe": EXPERTS, "techniques.sharding": Sharding.optim}, {"dp": 2, "ep": 2}),
    (
        "can't be written",
        {"techniques.sharding": Sharding.optim_grads, "recipe.checkpoint_every_steps": 10},
        {"dp": 2},
    ),
    ("latent attention with tp 2", {"model.mla": LATENTS}, {"tp": 2}),
    ("nothing is sharded", {"optimizer.distributed": False}, {"dp": 4, "shard_replicas": 2}),
    ("3 must divide dp x cp = 4", {}, {"dp": 4, "shard_replicas": 3}),
    ("nothing to reduce", {"techniques.overlap_grad_reduce": True}, {"tp": 2}),
    (
        "only a sharded optimizer gathers",
        {"techniques.overlap_param_gather": True, "optimizer.distributed": False},
        {"dp": 2},
    ),
    ("overlap_grad_reduce=true alone", {"techniques.overlap_param_gather": True}, {"dp": 2}),
    ("only interleaved stages", {"techniques.overlap_p2p": True}, {"pp": 2}),
    ("techniques.overlap_tp: needs", {"techniques.overlap_tp": True}, {"tp": 2}),
    (
        "learned positions have no rotation",
        {
            "model.learned_positions": True,
            "model.rope_scaling": RopeScaling(kind=RopeScalingKind.linear, factor=2.0),
        },
        {},
    ),
    (
        "latent attention takes yarn",
        {"model.mla": LATENTS, "model.rope_scaling": RopeScaling(kind=RopeScalingKind.linear, factor=2.0)},
        {},
    ),
    (
        "knows 8192 alone",
        {"model.rope_scaling": RopeScaling(kind=RopeScalingKind.llama3, factor=2.0, original_length=4096)},
        {},
    ),
    ("allowed: 1 or more", {"model.rope_scaling": RopeScaling(kind=RopeScalingKind.linear, factor=0.5)}, {}),
    ("has no effect while", {"model.sliding_window": 8}, {}),
    ("has no experts", {"techniques.moe_dispatcher": Dispatcher.allgather}, {}),
    ("has no experts", {"techniques.grouped_gemm": False}, {}),
    ("where experts have biases", {"model.moe": EXPERTS, "model.moe.router_bias": True}, {}),
    ("give both or none", {"model.moe": EXPERTS, "model.moe.router_groups": 2}, {}),
    (
        "groups must divide",
        {"model.moe": EXPERTS, "model.moe.router_groups": 3, "model.moe.router_groups_per_token": 1},
        {},
    ),
    ("only with precision.low_precision", {"precision.first_layers": 1}, {}),
    ("only with precision.low_precision", {"precision.cache_weights": False}, {}),
    ("fp8_delayed can't leave layers out", {**DELAYED, "precision.last_layers": 1}, {}),
    ("allowed: 0 to the 1 layers", {**FP8, "precision.first_layers": 2}, {"pp": 2}),
    ("needs optimizer.distributed", {"techniques.optimizer_offload": 0.5, "optimizer.distributed": False}, {}),
    ("whole master weights", {"techniques.optimizer_offload": 0.5, "techniques.param_remainders": True}, {}),
    ("only fp8_delayed has a history", {**FP8, "precision.amax_history": 16}, {}),
    ("only fp8_delayed has a history", {"precision.amax_compute": AmaxCompute.most_recent}, {}),
    ("mxfp8 alone", {**FP8, "precision.low_precision_output": True}, {}),
    (
        "not with nvfp4",
        {**FP8, "precision.low_precision": LowPrecision.nvfp4, "precision.low_precision_params": True},
        {},
    ),
    (
        "layout_invariant_weights: not with",
        {**FP8, "precision.low_precision_params": True, "recipe.layout_invariant_weights": True},
        {},
    ),
    ("doesn't give log Z", {"optimizer.z_loss": 1e-4}, {}),
    ("allowed: 0 or more", {"optimizer.z_loss": -1.0, "techniques.cross_entropy": CrossEntropy.linear}, {}),
    ("needs whole matrices", {"optimizer.muon": MuonSpec(), "techniques.sharding": Sharding.optim}, {"dp": 2}),
    ("neither optimizer_offload", {"optimizer.muon": MuonSpec(), "techniques.param_remainders": True}, {}),
    ("no such matrix", {"optimizer.muon": MuonSpec(), "model.mla": LATENTS}, {}),
    ("only with optimizer.decay=wsd", {"optimizer.decay_steps": 2}, {}),
    ("only with optimizer.decay=wsd", {"optimizer.decay_shape": DecayShape.cosine}, {}),
    ("allowed: 1 to the 2 steps", {"optimizer.decay": Decay.wsd, "optimizer.decay_steps": 3}, {}),
    ("no attention; there are", {"techniques.offload_modules": ["attention"]}, {}),
    ("has no moe_act", {"techniques.offload_modules": ["moe_act"]}, {}),
    ("goes with core_attn alone", {"techniques.offload_modules": ["attn_proj"]}, {}),
    (
        "use one of them",
        {"techniques.offload_modules": ["core_attn"], "techniques.activation_offload_layers": 1},
        {},
    ),
]


@pytest.mark.parametrize(("said", "keys", "sizes"), TRAPS, ids=[said for said, _, _ in TRAPS])
def test_a_trap_is_refused_alone(said: str, keys: Keys, sizes: Sizes) -> None:
    experiment = all_changed(tiny_experiment(), keys)
    problems = check_traps(experiment, plan_for(experiment, **sizes).layout)
    assert len(problems) == 1, problems
    assert said in problems[0].message


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({}, {}),
        ({}, {"tp": 2, "pp": 2, "dp": 2, "cp": 2, "sequence_parallel": True, "shard_replicas": 4}),
        ({"model.moe": EXPERTS}, {"tp": 2, "etp": 2, "sequence_parallel": True}),
        ({"model.moe": EXPERTS}, {"tp": 2, "ep": 2, "sequence_parallel": True}),
        ({"model.moe": EXPERTS, "techniques.sharding": Sharding.optim_grads}, {"dp": 2}),
        ({"model.mla": LATENTS}, {"tp": 2, "sequence_parallel": True}),
        ({"techniques.overlap_grad_reduce": True, "techniques.overlap_param_gather": True}, {"dp": 2}),
        ({"techniques.overlap_p2p": True}, {"pp": 2, "vp": 2}),
        ({**FP8, "precision.first_layers": 1, "precision.low_precision_params": True}, {}),
        ({**DELAYED, "precision.amax_history": 16}, {}),
        ({"optimizer.z_loss": 1e-4, "techniques.cross_entropy": CrossEntropy.linear}, {}),
        ({"optimizer.muon": MuonSpec()}, {"dp": 2}),
        ({"optimizer.decay": Decay.wsd, "optimizer.decay_steps": 2, "optimizer.decay_shape": DecayShape.cosine}, {}),
        ({"techniques.offload_modules": ["core_attn", "attn_proj"]}, {}),
    ],
)
def test_what_works_passes(keys: Keys, sizes: Sizes) -> None:
    experiment = all_changed(tiny_experiment(), keys)
    assert check_traps(experiment, plan_for(experiment, **sizes).layout) == []


def test_a_router_with_sigmoid_scores_has_a_bias_of_its_own() -> None:
    keys = {
        "model.moe": EXPERTS,
        "model.moe.router_score": RouterScore.sigmoid,
        "model.moe.router_bias": True,
        "model.moe.router_groups": 2,
        "model.moe.router_groups_per_token": 1,
    }
    experiment = all_changed(tiny_experiment(), keys)
    assert check_traps(experiment, plan_for(experiment).layout) == []


@pytest.mark.parametrize(
    ("keys", "sizes", "grad_reduce", "param_gather", "p2p"),
    [
        ({}, {"dp": 2}, False, False, False),
        (GPUS, {}, False, False, False),
        (GPUS, {"dp": 2}, True, True, False),
        (GPUS, {"cp": 2}, True, True, False),
        ({**GPUS, "optimizer.distributed": False}, {"dp": 2}, True, False, False),
        ({**GPUS, "optimizer.muon": MuonSpec()}, {"dp": 2}, True, False, False),
        ({**GPUS, "techniques.overlap_grad_reduce": False}, {"dp": 2}, False, False, False),
        (GPUS, {"pp": 2, "vp": 2}, False, False, True),
        ({**GPUS, "techniques.overlap_p2p": False}, {"pp": 2, "vp": 2}, False, False, False),
    ],
)
def test_ranks_overlap_what_they_have_to_gain_from(
    keys: Keys, sizes: Sizes, *, grad_reduce: bool, param_gather: bool, p2p: bool
) -> None:
    experiment = all_changed(tiny_experiment(), keys)
    found = derive_overlaps(experiment, plan_for(experiment, **sizes).layout)
    assert (found.grad_reduce, found.param_gather, found.p2p) == (grad_reduce, param_gather, p2p)
