"""Models and layouts whose training is compared with that of a single rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import layout_runs
from build_probe import changed
from training_workers import plan_for, tiny_experiment, write_run

from pipeline.types import (
    Activation,
    CrossEntropy,
    Dispatcher,
    DType,
    Experiment,
    MlaSpec,
    MoeSpec,
    Normalization,
    Recompute,
    RecomputeMethod,
    RopeScaling,
    RopeScalingKind,
    RouterScore,
    Sharding,
)

STEPS = 2

EXPERTS = MoeSpec(
    num_experts=4,
    top_k=2,
    expert_ffn_hidden_size=32,
    shared_ffn_hidden_size=32,
    dense_layers=1,
    balance_weight=0.01,
    z_loss=1e-3,
)
LATENTS = MlaSpec(kv_lora_rank=16, q_lora_rank=16, qk_nope_dim=8, qk_rope_dim=8, v_dim=8)
YARN = RopeScaling(kind=RopeScalingKind.yarn, factor=4.0, original_length=16, mscale_all_dim=1.0)

MODELS: dict[str, Mapping[str, object]] = {
    "dense": {},
    "tied": {"model.tied_embeddings": True},
    "ornate": {
        "model.qk_norm": True,
        "model.linear_bias": True,
        "model.normalization": Normalization.layernorm,
        "model.rope_scaling": RopeScaling(kind=RopeScalingKind.llama3, factor=8.0),
    },
    "experts": {"model.moe": EXPERTS},
    "latent": {"model.mla": LATENTS, "model.rope_scaling": YARN},
    # DeepSeek's kinds of everything; gpt-oss's, less the biases of experts, which need more ranks on a CPU.
    "deepseek": {
        "model.mla": LATENTS,
        "model.moe": MoeSpec(
            num_experts=4,
            top_k=2,
            expert_ffn_hidden_size=32,
            router_bias=True,
            router_score=RouterScore.sigmoid,
            router_scale=2.5,
            router_groups=2,
            router_groups_per_token=1,
        ),
    },
    "oss": {
        "model.moe": MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32),
        "model.activation": Activation.clamped_swiglu,
        "model.sinks": True,
        "model.sliding_window": 8,
        "model.full_attention_every": 2,
        "model.rope_scaling": YARN,
    },
}
"""Keys of each model, beside those of the tiny one of four layers."""

SP = {"sequence_parallel": True}
FSDP = {"techniques.sharding": Sharding.optim_grads_params}
GATHERED = {"techniques.moe_dispatcher": Dispatcher.allgather}
OVERLAPPED = {"techniques.overlap_grad_reduce": True, "techniques.overlap_param_gather": True}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model trained on a layout, with some keys set."""

    model: str = "dense"
    layout: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)
    reference: Mapping[str, object] = field(default_factory=dict)
    """Keys of the single rank that it is compared with."""

    def experiment(self, *, single: bool = False) -> Experiment:
        """The experiment, or the one that a single rank runs to compare with."""
        experiment = tiny_experiment(steps=STEPS)
        experiment.model.num_layers = 4
        # The first update counts in full, so that two steps show what it was.
        experiment.optimizer.warmup_steps = 0
        for key, value in {**MODELS[self.model], **(self.reference if single else self.keys)}.items():
            changed(experiment, key, value)
        return experiment


CASES = {
    "tp2": Case(layout={"tp": 2}),
    "tp2 sp": Case(layout={"tp": 2, **SP}),
    "tp2 pp2 sp": Case(layout={"tp": 2, "pp": 2, **SP}),
    "pp2 vp2": Case(layout={"pp": 2, "vp": 2}),
    "pp2 vp2 overlapped sends": Case(layout={"pp": 2, "vp": 2}, keys={"techniques.overlap_p2p": True}),
    "pp2 vp2 dp2 overlapped": Case(layout={"pp": 2, "vp": 2, "dp": 2}, keys=OVERLAPPED),
    "placed chunks": Case(layout={"pp": 2, "vp": 2, "chunk_layers": (1, 2, 1, 0)}),
    "cp2": Case(layout={"cp": 2}),
    "cp2 tp2 sp": Case(layout={"cp": 2, "tp": 2, **SP}),
    "dp2 overlapped": Case(layout={"dp": 2}, keys=OVERLAPPED),
    "dp2 replicated optimizer": Case(layout={"dp": 2}, keys={"optimizer.distributed": False}),
    "dp4 in two groups": Case(layout={"dp": 4, "shard_replicas": 2}),
    "fsdp optim": Case(layout={"dp": 2}, keys={"techniques.sharding": Sharding.optim}),
    "fsdp optim_grads": Case(layout={"dp": 2}, keys={"techniques.sharding": Sharding.optim_grads}),
    "fsdp all overlapped": Case(layout={"dp": 2}, keys={**FSDP, **OVERLAPPED}),
    "fsdp all tp2": Case(layout={"tp": 2, "dp": 2}, keys=FSDP),
    "fsdp all in two groups": Case(layout={"dp": 4, "shard_replicas": 2}, keys=FSDP),
    "tied pp2": Case(model="tied", layout={"pp": 2}),
    "ornate tp2 sp": Case(model="ornate", layout={"tp": 2, **SP}),
    "experts ep2": Case(model="experts", layout={"dp": 2, "ep": 2}),
    "experts ep2 gathered": Case(model="experts", layout={"dp": 2, "ep": 2}, keys=GATHERED),
    "experts ep2 tp2 sp": Case(model="experts", layout={"tp": 2, "ep": 2, **SP}),
    "experts split tp2 sp": Case(model="experts", layout={"tp": 2, "etp": 2, **SP}, keys=GATHERED),
    "experts cp2 ep2": Case(model="experts", layout={"cp": 2, "ep": 2}),
    "experts fsdp": Case(model="experts", layout={"dp": 2}, keys=FSDP),
    "latent tp2 sp": Case(model="latent", layout={"tp": 2, **SP}),
    "latent cp2": Case(model="latent", layout={"cp": 2}),
    "latent pp2": Case(model="latent", layout={"pp": 2}),
    "deepseek pp2 ep2": Case(model="deepseek", layout={"pp": 2, "dp": 2, "ep": 2}),
    "oss ep2": Case(model="oss", layout={"dp": 2, "ep": 2}),
    "oss cp2": Case(model="oss", layout={"cp": 2}),
    "loss in chunks": Case(keys={"techniques.cross_entropy": CrossEntropy.linear}),
    "loss in chunks tp2 sp": Case(layout={"tp": 2, **SP}, keys={"techniques.cross_entropy": CrossEntropy.linear}),
    "tied loss in chunks tp2": Case(
        model="tied", layout={"tp": 2}, keys={"techniques.cross_entropy": CrossEntropy.linear}
    ),
    "z-loss tp2": Case(
        layout={"tp": 2},
        keys={"techniques.cross_entropy": CrossEntropy.linear, "optimizer.z_loss": 0.01},
        reference={"techniques.cross_entropy": CrossEntropy.unfused, "optimizer.z_loss": 0.01},
    ),
    "recompute all": Case(keys={"techniques.recompute": Recompute.full}),
    "recompute block": Case(
        layout={"pp": 2},
        keys={"techniques.recompute": Recompute.full, "techniques.recompute_method": RecomputeMethod.block},
    ),
    "recompute modules": Case(
        keys={
            "techniques.recompute": Recompute.selective,
            "techniques.recompute_modules": ["layernorm", "mlp", "core_attn"],
        }
    ),
    "latent recompute": Case(
        model="latent",
        keys={"techniques.recompute": Recompute.selective, "techniques.recompute_modules": ["mla_up_proj"]},
    ),
    "experts recompute": Case(
        model="experts",
        keys={"techniques.recompute": Recompute.selective, "techniques.recompute_modules": ["moe", "shared_experts"]},
    ),
    "recompute with dropout": Case(
        keys={"model.hidden_dropout": 0.1, "techniques.recompute": Recompute.full},
        reference={"model.hidden_dropout": 0.1},
    ),
    "bf16 gradients": Case(
        layout={"tp": 2},
        keys={"precision.dtype": DType.bf16, "techniques.grads": DType.bf16},
        reference={"precision.dtype": DType.bf16, "techniques.grads": DType.bf16},
    ),
}


class Trainers:
    """Trains cases in ranks forked from one process that has everything imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0
        self._known: dict[str, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", layout_runs.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def single(self, case: Case) -> dict[str, Any]:
        """What one rank measures of the case's model."""
        key = repr((case.model, case.reference))
        if key not in self._known:
            self._known[key] = self.train(case.experiment(single=True), {})
        return self._known[key]

    def train(self, experiment: Experiment, layout: Mapping[str, Any], *, fault: str | None = None) -> dict[str, Any]:
        """Losses and gradient norms, step by step, or what went wrong."""
        self._runs += 1
        run = write_run(self._folder / str(self._runs), experiment, plan_for(experiment, **layout))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"run": str(run.path), "steps": STEPS, "fault": fault}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
