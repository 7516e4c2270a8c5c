"""Builds and briefly trains in one process what each configuration key changes, and prints a fingerprint of each.

A program of its own, since it replaces names of torch for the life of its process: `python build_probe.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from training_workers import plan_for, tiny_experiment

from pipeline.types import (
    Activation,
    CrossEntropy,
    Decay,
    DType,
    Experiment,
    Layout,
    Normalization,
    Plan,
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
    "model.qk_norm": True,
    "model.linear_bias": True,
    "model.qkv_bias": True,
    "model.learned_positions": True,
    "precision.dtype": DType.bf16,
    "optimizer.lr": 2e-3,
    "optimizer.min_lr": 1e-5,
    "optimizer.warmup_steps": 1,
    "optimizer.decay": Decay.linear,
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
}
"""A value other than the tiny experiment's for every key that workers obey."""

BESIDE: dict[str, tuple[str, object]] = {"techniques.cross_entropy": ("precision.dtype", DType.bf16)}
"""Keys that show their effect beside another key's case only."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "layout.tp": {"tp": 2},
    "layout.pp": {"pp": 2},
    "layout.cp": {"cp": 2},
    "layout.sequence_parallel": {"tp": 2, "sequence_parallel": True},
    "layout.none": {"dp": 2},
}
"""Layouts of two ranks that tell the keys of a layout request apart."""


def main() -> None:
    """Prints one JSON object: fingerprint by key."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    prints = {"baseline": trained(tiny_experiment(steps=STEPS), backend)}
    prints["baseline again"] = trained(tiny_experiment(steps=STEPS), backend)
    for key in VALUES:
        prints[key] = trained(experiment_of(key, steps=STEPS), backend)
    for key, layout in LAYOUTS.items():
        prints[key] = laid_out(layout, backend)
    json.dump(prints, sys.stdout)


def experiment_of(key: str, *, steps: int) -> Experiment:
    """The tiny experiment with one key changed, and the one it shows its effect beside."""
    experiment = changed(tiny_experiment(steps=steps), key, VALUES[key])
    return changed(experiment, *BESIDE[key]) if key in BESIDE else experiment


def baseline_of(key: str) -> str:
    """The case that differs from this key's in this key alone."""
    return BESIDE[key][0] if key in BESIDE else "baseline"


def changed(experiment: Experiment, key: str, value: object) -> Experiment:
    """The experiment with one key set, written as on the command line."""
    *groups, name = key.split(".")
    owner: Any = experiment
    for group in groups:
        owner = getattr(owner, group)
    setattr(owner, name, value)
    return experiment


def trained(experiment: Experiment, backend: Any) -> dict[str, object]:
    """What a single rank builds and measures over a few steps."""
    from pipeline.datasets.opening import open_data
    from pipeline.training import loop, megatron
    from pipeline.training.data import samplers, shape_of
    from pipeline.training.events import PrintedEvents

    plan, recipe = plan_for(experiment), experiment.recipe
    with ranks(plan.layout, experiment.seed, backend):
        model = megatron.build_model(experiment, plan, backend)
        optimizer = megatron.build_optimizer(model, experiment.optimizer)
        opened = open_data(experiment.data, shape_of(experiment))
        data = samplers(opened, experiment, plan.layout, dp_rank=0, cp_rank=0, device=backend.device)
        trainer = loop.Trainer(
            model=model,
            optimizer=optimizer,
            schedule=megatron.build_schedule(optimizer, experiment.optimizer, recipe.steps),
            sampler=data.train,
            validation=loop.Validation.of(data.validation, recipe),
            steps=recipe.steps,
            sink=PrintedEvents(),
            reports=False,
        )
        return {**shape(model), "optimizer": optimizers(optimizer), "batch": batch_shapes(trainer), **steps(trainer)}


def laid_out(layout: dict[str, Any], backend: Any) -> dict[str, object]:
    """What rank 0 of two builds, without its peer: torch's fake process group answers every collective."""
    from pipeline.training import megatron

    experiment = tiny_experiment()
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
    gpt = model.module if hasattr(model.module, "decoder") else model.module.module
    return {
        "parameters": {
            name: [str(p.dtype), *p.shape, bool(getattr(p, "sequence_parallel", False))]
            for name, p in model.named_parameters()
        },
        "total": sum(p.numel() for p in model.parameters()),
        "max_sequence_length": gpt.max_sequence_length,
        "fused_loss": gpt.config.cross_entropy_loss_fusion,
        "parallel": [
            gpt.config.tensor_model_parallel_size,
            gpt.config.sequence_parallel,
            gpt.config.pipeline_model_parallel_size,
            gpt.config.context_parallel_size,
        ],
    }


def optimizers(optimizer: Any) -> list[str]:
    """The classes that hold the optimizer's state."""
    return [type(part).__name__ for part in optimizer.chained_optimizers]


def batch_shapes(trainer: Any) -> list[list[int]]:
    """Shapes of the micro-batches of a step."""
    return [list(batch.tokens.shape) for batch in trainer.sampler.batches(1)]


def steps(trainer: Any) -> dict[str, object]:
    """The numbers of a few steps."""
    from pipeline.training import loop

    results = [loop.run_step(trainer, step) for step in range(1, trainer.steps + 1)]
    return {
        "losses": [result.loss for result in results],
        "validation": loop.validate(trainer.model, trainer.validation) if trainer.validation else None,
        "looks": [step for step in range(1, 6) if trainer.validation and trainer.validation.is_due(step, last=5)],
        "norms": [result.grad_norm for result in results],
        "rates": [result.learning_rate for result in results],
    }


if __name__ == "__main__":
    main()
