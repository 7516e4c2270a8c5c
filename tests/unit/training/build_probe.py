"""Builds and briefly trains in one process what each configuration key changes, and prints a fingerprint of each.

A program of its own, since it replaces names of torch for the life of its process: `python build_probe.py`.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from training_workers import plan_for, tiny_experiment

from pipeline.types import (
    Activation,
    AmaxCompute,
    Balance,
    CpComm,
    CrossEntropy,
    Decay,
    DecayShape,
    Dispatcher,
    DType,
    Experiment,
    Layout,
    LowPrecision,
    MlaSpec,
    MoeSpec,
    MuonScale,
    MuonSpec,
    Normalization,
    Plan,
    Recompute,
    RecomputeMethod,
    RopeScaling,
    RopeScalingKind,
    RouterScore,
    Sharding,
)

STEPS = 5

VALUES: dict[str, object] = {
    "seed": 4321,
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.ffn_hidden_size": 96,
    "model.num_attention_heads": 2,
    "model.num_query_groups": 4,
    "model.vocab_size": 384,
    "model.max_sequence_length": 128,
    "model.head_dim": 16,
    "model.normalization": Normalization.layernorm,
    "model.activation": Activation.gelu,
    "model.tied_embeddings": True,
    "model.rope_base": 500.0,
    "model.rope_scaling": RopeScaling(kind=RopeScalingKind.linear, factor=4.0),
    "model.norm_eps": 1e-2,
    "model.moe": MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32, shared_ffn_hidden_size=16),
    "model.mla": MlaSpec(kv_lora_rank=16, q_lora_rank=16, qk_nope_dim=8, qk_rope_dim=8, v_dim=8),
    "model.sinks": True,
    "model.sliding_window": 4,
    "model.full_attention_every": 2,
    "model.hidden_dropout": 0.1,
    "model.qk_norm": True,
    "model.linear_bias": True,
    "model.qkv_bias": True,
    "model.learned_positions": True,
    "precision.dtype": DType.bf16,
    "optimizer.lr": 2e-3,
    "optimizer.min_lr": 1e-5,
    "optimizer.warmup_steps": 1,
    "optimizer.decay": Decay.linear,
    "optimizer.decay_steps": 3,
    "optimizer.decay_shape": DecayShape.minus_sqrt,
    "optimizer.no_decay": ["*embedding*"],
    "optimizer.z_loss": 0.01,
    "optimizer.weight_decay": 0.5,
    "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.5,
    "optimizer.eps": 1e-3,
    "optimizer.clip_grad": 0.0,
    "optimizer.distributed": False,
    "recipe.steps": 3,
    "recipe.sequence_length": 16,
    "recipe.micro_batch": 4,
    "recipe.global_batch": 4,
    "data.path": __file__,
    "techniques.cross_entropy": CrossEntropy.unfused,
    "techniques.grads": DType.bf16,
}
"""A value other than the tiny experiment's for every key that workers obey."""

BESIDE: dict[str, dict[str, object]] = {
    "techniques.cross_entropy": {"precision.dtype": DType.bf16},
    "techniques.grads": {"precision.dtype": DType.bf16},
    "model.sliding_window": {"model.full_attention_every": 2},
    "model.full_attention_every": {"model.sliding_window": 4, "model.full_attention_every": 3},
    "optimizer.decay_steps": {"optimizer.decay": Decay.wsd},
    "optimizer.decay_shape": {"optimizer.decay": Decay.wsd, "optimizer.decay_steps": 3},
    "optimizer.no_decay": {"optimizer.weight_decay": 0.5},
    "optimizer.z_loss": {"techniques.cross_entropy": CrossEntropy.unfused},
}
"""What else is set, with the key and without it, so that it shows its effect."""

EXPERTS = MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32)
DELAYED = {"precision.dtype": DType.bf16, "precision.low_precision": LowPrecision.fp8_delayed}
CURRENT = {"precision.dtype": DType.bf16, "precision.low_precision": LowPrecision.fp8_current}

CONFIGURED: dict[str, tuple[dict[str, object], object]] = {
    "precision.low_precision": ({"precision.dtype": DType.bf16}, LowPrecision.fp8_blockwise),
    "precision.low_precision_params": (CURRENT, True),
    "precision.low_precision_output": ({**CURRENT, "precision.low_precision": LowPrecision.mxfp8}, True),
    "precision.cache_weights": (CURRENT, False),
    "precision.amax_history": (DELAYED, 16),
    "precision.amax_compute": (DELAYED, AmaxCompute.most_recent),
    "precision.first_layers": (CURRENT, 1),
    "precision.last_layers": (CURRENT, 1),
    "techniques.recompute": ({}, Recompute.full),
    "techniques.recompute_modules": (
        {"techniques.recompute": Recompute.selective, "techniques.recompute_modules": ["mlp"]},
        ["layernorm"],
    ),
    "techniques.recompute_method": ({"techniques.recompute": Recompute.full}, RecomputeMethod.block),
    "techniques.recompute_num_layers": ({"techniques.recompute": Recompute.full}, 2),
    "techniques.sharding": ({}, Sharding.optim),
    "techniques.moments": ({"precision.dtype": DType.bf16}, DType.bf16),
    "techniques.param_remainders": ({"precision.dtype": DType.bf16}, True),
    "techniques.cp_comm": ({}, CpComm.a2a),
    "techniques.moe_dispatcher": ({"model.moe": EXPERTS}, Dispatcher.flex),
    "techniques.grouped_gemm": ({"model.moe": EXPERTS}, False),
    "techniques.overlap_grad_reduce": ({}, True),
    "techniques.overlap_param_gather": ({"techniques.overlap_grad_reduce": True}, True),
    "techniques.overlap_p2p": ({}, True),
    "techniques.overlap_tp": ({}, True),
    "techniques.optimizer_offload": ({}, 0.5),
    "techniques.activation_offload_layers": ({}, 1),
    "techniques.offload_modules": ({}, ["core_attn"]),
    "optimizer.muon": ({}, MuonSpec()),
    **{
        f"optimizer.muon.{name}": ({"optimizer.muon": MuonSpec()}, value)
        for name, value in {
            "momentum": 0.9,
            "iterations": 4,
            "scale": MuonScale.unit_rms_norm,
            "extra_scale": 0.2,
            "split_qkv": False,
        }.items()
    },
    **{
        f"model.moe.{name}": ({"model.moe": EXPERTS}, value)
        for name, value in {
            "num_experts": 8,
            "top_k": 1,
            "expert_ffn_hidden_size": 16,
            "shared_ffn_hidden_size": 16,
            "dense_layers": 1,
            "expert_bias": True,
            "capacity_factor": 1.5,
            "router_score": RouterScore.sigmoid,
            "router_scale": 2.0,
            "router_groups": 2,
            "router_groups_per_token": 1,
            "balance": Balance.seq_aux_loss,
            "balance_weight": 0.1,
            "z_loss": 1e-3,
        }.items()
    },
    "model.moe.router_bias": ({"model.moe": replace(EXPERTS, router_score=RouterScore.sigmoid)}, True),
}
"""For keys that need a GPU, a package or more ranks, and for keys within a key: what is set beside them, and a value
that changes what Megatron-Core is configured with."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "layout.tp": {"tp": 2},
    "layout.pp": {"pp": 2},
    "layout.cp": {"cp": 2},
    "layout.sequence_parallel": {"tp": 2, "sequence_parallel": True},
    "layout.vp": {"pp": 2, "vp": 2},
    "layout.chunk_layers": {"pp": 2, "chunk_layers": (3, 1)},
    "layout.ep": {"dp": 2, "ep": 2},
    "layout.etp": {"tp": 2, "etp": 2, "sequence_parallel": True},
    "layout.shard_replicas": {"dp": 2, "shard_replicas": 2},
    "layout.none": {"dp": 2},
}
"""Layouts of two ranks, of a model with experts, that tell the keys of a layout request apart."""


def main() -> None:
    """Prints one JSON object: fingerprint by key."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    prints = {"baseline": trained(tiny_experiment(steps=STEPS), backend)}
    prints["baseline again"] = trained(tiny_experiment(steps=STEPS), backend)
    for key in VALUES:
        prints[key] = trained(experiment_of(key, steps=STEPS), backend)
    for key, beside in BESIDE.items():
        prints[baseline_of(key)] = trained(all_changed(tiny_experiment(steps=STEPS), beside), backend)
    for key, (beside, value) in CONFIGURED.items():
        prints[key] = {"without": configured(beside), "with": configured({**beside, key: value})}
    for key, layout in LAYOUTS.items():
        prints[key] = laid_out(layout, backend)
    json.dump(prints, sys.stdout)


def experiment_of(key: str, *, steps: int) -> Experiment:
    """The tiny experiment with one key changed, and what it shows its effect beside."""
    return all_changed(tiny_experiment(steps=steps), {**BESIDE.get(key, {}), key: VALUES[key]})


def baseline_of(key: str) -> str:
    """The case that differs from this key's in this key alone."""
    return f"{key} left out" if key in BESIDE else "baseline"


def all_changed(experiment: Experiment, changes: Mapping[str, object]) -> Experiment:
    """The experiment with several keys set."""
    for key, value in changes.items():
        changed(experiment, key, copy.deepcopy(value))
    return experiment


def changed(experiment: Experiment, key: str, value: object) -> Experiment:
    """The experiment with one key set, written as on the command line."""
    *groups, name = key.split(".")
    owner: Any = experiment
    for group in groups:
        owner = getattr(owner, group)
    setattr(owner, name, value)
    return experiment


def configured(changes: Mapping[str, object]) -> dict[str, str]:
    """What Megatron-Core's classes would be given on a GPU, word by word."""
    import torch

    from pipeline.training.backend import Backend
    from pipeline.training.megatron.config import transformer_options
    from pipeline.training.megatron.optimizer import optimizer_options
    from pipeline.training.megatron.sharding import ddp_options

    experiment = all_changed(tiny_experiment(), changes)
    layout = plan_for(experiment).layout
    backend = Backend(device=torch.device("meta"), collectives="nccl", parts=None)
    model = transformer_options(experiment, layout, backend)
    sharding = ddp_options(experiment, layout, backend)
    chunk: Any = SimpleNamespace(config=SimpleNamespace(**model), ddp_config=SimpleNamespace(**sharding))
    groups = {"model": model, "sharding": sharding, "optimizer": optimizer_options([chunk], experiment)}
    return {f"{group}.{name}": repr(value) for group, options in groups.items() for name, value in options.items()}


def trained(experiment: Experiment, backend: Any) -> dict[str, object]:
    """What a single rank builds and measures over a few steps."""
    from pipeline.datasets.opening import open_data
    from pipeline.training import loop, megatron
    from pipeline.training.data import samplers, shape_of

    plan, recipe = plan_for(experiment), experiment.recipe
    with ranks(plan.layout, experiment.seed, backend):
        model = megatron.build_model(experiment, plan, backend)
        optimizer = megatron.build_optimizer(model, experiment)
        schedule = megatron.build_schedule(optimizer, experiment.optimizer, recipe.steps)
        opened = open_data(experiment.data, shape_of(experiment))
        data = samplers(opened, experiment, plan.layout, dp_rank=0, cp_rank=0, device=backend.device)
        found = [one_step(model, optimizer, schedule, data.train, step) for step in range(1, recipe.steps + 1)]
        validation = loop.Validation.of(data.validation, recipe)
        return {
            **shape(model),
            "optimizer": optimizers(optimizer),
            "batch": [list(batch.tokens.shape) for batch in data.train.batches(1)],
            "losses": [loss for loss, _, _ in found],
            "norms": [norm for _, norm, _ in found],
            "rates": [rate for _, _, rate in found],
            "validation": loop.validate(model, validation) if validation else None,
            "looks": [step for step in range(1, 6) if validation and validation.is_due(step, last=5)],
        }


def one_step(model: Any, optimizer: Any, schedule: Any, sampler: Any, step: int) -> tuple[float, float, float]:
    """Loss, gradient norm and rate of a step."""
    import torch

    from pipeline.training import megatron

    rate = megatron.learning_rate(schedule)
    megatron.clear_gradients(model, optimizer)
    found = megatron.forward_backward(model, sampler.batches(step), sampler.layout, sampler.sequence_length)
    total, count = torch.stack(found).sum(0).tolist()
    norm = megatron.optimizer_step(optimizer)
    megatron.advance_schedule(schedule)
    return total / count, norm, rate


def laid_out(layout: dict[str, Any], backend: Any) -> dict[str, object]:
    """What rank 0 of two builds, without its peer: torch's fake process group answers every collective."""
    from pipeline.training import megatron

    experiment = all_changed(tiny_experiment(), {"model.num_layers": 4, "model.moe": EXPERTS})
    plan: Plan = plan_for(experiment, **layout)
    with ranks(plan.layout, experiment.seed, backend):
        return shape(megatron.build_model(experiment, plan, backend))


@contextmanager
def ranks(layout: Layout, seed: int, backend: Any) -> Iterator[Any]:
    """Process groups of this layout, as seen by rank 0."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from pipeline.training import megatron

    name, store = ("gloo", dist.HashStore()) if layout.ranks == 1 else ("fake", FakeStore())
    dist.init_process_group(name, store=store, rank=0, world_size=layout.ranks)
    try:
        yield megatron.initialize_ranks(layout, backend, seed=seed, timeout_min=1)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def shape(model: Any) -> dict[str, object]:
    """The built model: its parameters and the settings that show in no shape."""
    gpt = [chunk.module if hasattr(chunk.module, "decoder") else chunk.module.module for chunk in model]
    config = gpt[0].config
    return {
        "parameters": [
            {
                name: [str(p.dtype), *p.shape, bool(getattr(p, "sequence_parallel", False))]
                for name, p in chunk.named_parameters()
            }
            for chunk in model
        ],
        "total": sum(p.numel() for chunk in model for p in chunk.parameters()),
        "max_sequence_length": gpt[0].max_sequence_length,
        "fused_loss": config.cross_entropy_loss_fusion,
        "gradients": [str(buffer.grad_dtype) for chunk in model for buffer in chunk.buffers],
        "parallel": [
            config.tensor_model_parallel_size,
            config.sequence_parallel,
            config.pipeline_model_parallel_size,
            config.context_parallel_size,
            config.expert_model_parallel_size,
            config.expert_tensor_parallel_size,
            model[0].ddp_config.num_distributed_optimizer_instances,
        ],
    }


def optimizers(optimizer: Any) -> list[str]:
    """The classes that hold the optimizer's state."""
    return [type(part).__name__ for part in optimizer.chained_optimizers]


if __name__ == "__main__":
    main()
