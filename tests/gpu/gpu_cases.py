"""What is trained on GPUs: each precision, each way to save memory, each layout, over a small Llama and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from build_probe import changed
from training_workers import tiny_experiment

from pipeline.types import (
    AmaxCompute,
    CpComm,
    CrossEntropy,
    DType,
    Experiment,
    LowPrecision,
    MlaSpec,
    MoeSpec,
    Recompute,
    RecomputeMethod,
    Sharding,
)

STEPS = 20
SEQUENCE = 512
BF16 = {"precision.dtype": DType.bf16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A small model trained with some keys set."""

    model: str = "dense"
    keys: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 1
    steps: int = STEPS

    def experiment(self) -> Experiment:
        """Its experiment, on nodes of as many GPUs."""
        experiment = tiny_experiment(steps=self.steps)
        experiment.hardware.gpus_per_node, experiment.ranks = self.ranks, self.ranks
        for key, value in {**SIZES, **MODELS[self.model], **BF16, **self.keys}.items():
            changed(experiment, key, value)
        return experiment


SIZES: dict[str, object] = {
    "model.num_layers": 4,
    "model.hidden_size": 512,
    "model.ffn_hidden_size": 1408,
    "model.num_attention_heads": 8,
    "model.num_query_groups": 4,
    "model.head_dim": 64,
    "model.vocab_size": 4096,
    "model.max_sequence_length": SEQUENCE,
    "recipe.sequence_length": SEQUENCE,
    "recipe.micro_batch": 4,
    "recipe.global_batch": 16,
    "optimizer.lr": 1e-3,
    "optimizer.min_lr": 1e-4,
    "optimizer.warmup_steps": 2,
}
MODELS: dict[str, Mapping[str, object]] = {
    "dense": {},
    "experts": {
        # One after the other: grouped kernels need a cuBLAS that not every machine has.
        "model.moe": MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=512, shared_ffn_hidden_size=512),
        "techniques.grouped_gemm": False,
    },
    "latent": {
        "model.mla": MlaSpec(kv_lora_rank=128, q_lora_rank=192, qk_nope_dim=64, qk_rope_dim=64, v_dim=64),
        "model.head_dim": None,
    },
}

DELAYED = {"precision.low_precision": LowPrecision.fp8_delayed}
CURRENT = {"precision.low_precision": LowPrecision.fp8_current}
BLOCKWISE = {"precision.low_precision": LowPrecision.fp8_blockwise}
PARAMS = {"precision.low_precision_params": True}
SAME_START = {"recipe.layout_invariant_weights": True}
MEMORY_STEPS = 4

PRECISIONS: dict[str, Case] = {
    "bf16": Case(),
    "fp32": Case(keys={"precision.dtype": DType.fp32, "techniques.cross_entropy": CrossEntropy.unfused}),
    "fp8 delayed": Case(keys=DELAYED),
    "fp8 delayed, most recent": Case(
        keys={**DELAYED, "precision.amax_history": 4, "precision.amax_compute": AmaxCompute.most_recent}
    ),
    "fp8 delayed, parameters": Case(keys={**DELAYED, **PARAMS}),
    "fp8 current": Case(keys=CURRENT),
    "fp8 current, parameters": Case(keys={**CURRENT, **PARAMS}),
    "fp8 current, first and last layer in bf16": Case(
        keys={**CURRENT, "precision.first_layers": 1, "precision.last_layers": 1}
    ),
    "fp8 current, weights not cached": Case(keys={**CURRENT, "precision.cache_weights": False}),
    "fp8 blockwise": Case(keys=BLOCKWISE),
    "fp8 blockwise, parameters": Case(keys={**BLOCKWISE, **PARAMS}),
    "bf16 gradients": Case(keys={"techniques.grads": DType.bf16}),
    "bf16 moments": Case(keys={"techniques.moments": DType.bf16}),
    "remainders": Case(keys={"techniques.param_remainders": True}),
    "linear loss": Case(keys={"techniques.cross_entropy": CrossEntropy.linear}),
    "linear loss, z-loss": Case(keys={"techniques.cross_entropy": CrossEntropy.linear, "optimizer.z_loss": 1e-3}),
    "unfused loss": Case(keys={"techniques.cross_entropy": CrossEntropy.unfused}),
    "growing segments": Case(keys={"techniques.expandable_segments": True}),
    "experts": Case(model="experts"),
    "experts fp8 current": Case(model="experts", keys=CURRENT),
    "latent": Case(model="latent"),
    "same start": Case(keys=SAME_START),
}
"""Each learns."""

MEMORY: dict[str, Case] = {
    "kept": Case(steps=MEMORY_STEPS),
    "recompute all": Case(keys={"techniques.recompute": Recompute.full}, steps=MEMORY_STEPS),
    "recompute two layers": Case(
        keys={
            "techniques.recompute": Recompute.full,
            "techniques.recompute_method": RecomputeMethod.block,
            "techniques.recompute_num_layers": 2,
        },
        steps=MEMORY_STEPS,
    ),
    "recompute mlp": Case(
        keys={"techniques.recompute": Recompute.selective, "techniques.recompute_modules": ["mlp"]}, steps=MEMORY_STEPS
    ),
    "recompute norms": Case(
        keys={"techniques.recompute": Recompute.selective, "techniques.recompute_modules": ["layernorm"]},
        steps=MEMORY_STEPS,
    ),
    "offload layers": Case(keys={"techniques.activation_offload_layers": 3}, steps=MEMORY_STEPS),
    "offload modules": Case(
        keys={"techniques.offload_modules": ["qkv_linear", "core_attn", "attn_proj"]}, steps=MEMORY_STEPS
    ),
    "offload optimizer": Case(keys={"techniques.optimizer_offload": 1.0}, steps=MEMORY_STEPS),
}
"""Each takes less memory than the first."""

LAYOUT_STEPS = 5
LAYOUTS: dict[str, Case] = {
    name: Case(model=model, keys={**SAME_START, **keys}, ranks=ranks, steps=LAYOUT_STEPS)
    for name, model, ranks, keys in (
        ("one", "dense", 1, {}),
        ("tp2 sp", "dense", 2, {"layout.tp": 2, "layout.sequence_parallel": True}),
        (
            "tp2 sp linear loss",
            "dense",
            2,
            {"layout.tp": 2, "layout.sequence_parallel": True, "techniques.cross_entropy": CrossEntropy.linear},
        ),
        (
            "tp2 sp overlapped",
            "dense",
            2,
            {"layout.tp": 2, "layout.sequence_parallel": True, "techniques.overlap_tp": True},
        ),
        ("pp2", "dense", 2, {"layout.pp": 2}),
        ("pp2 vp2", "dense", 2, {"layout.pp": 2, "layout.vp": 2}),
        ("cp2 ring", "dense", 2, {"layout.cp": 2}),
        ("cp2 heads", "dense", 2, {"layout.cp": 2, "techniques.cp_comm": CpComm.a2a}),
        ("cp2 gathered", "dense", 2, {"layout.cp": 2, "techniques.cp_comm": CpComm.all_gather}),
        ("dp2", "dense", 2, {}),
        ("dp2 replicated", "dense", 2, {"optimizer.distributed": False}),
        ("fsdp", "dense", 2, {"techniques.sharding": Sharding.optim_grads_params}),
        ("fsdp optim_grads", "dense", 2, {"techniques.sharding": Sharding.optim_grads}),
        ("experts one", "experts", 1, {}),
        ("experts ep2", "experts", 2, {"layout.ep": 2}),
        ("latent one", "latent", 1, {}),
        ("latent tp2 sp", "latent", 2, {"layout.tp": 2, "layout.sequence_parallel": True}),
    )
}
"""Each trains as its model does on one GPU, from the same weights."""

CASES: dict[str, Case] = {**PRECISIONS, **MEMORY, **LAYOUTS}
