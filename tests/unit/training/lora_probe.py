"""Adapters on a single rank, looked at from inside: `python lora_probe.py`."""

from __future__ import annotations

import json
import sys
from typing import Any

import build_probe
from training_workers import plan_for, tiny_experiment

from pipeline.types import LoraSpec, Recompute

STEPS = 4


def main() -> None:
    """Prints what is trained, what it adds, and whether merging it says the same."""
    from pipeline.training import cpu_backend

    backend = cpu_backend.install()
    plain = looked_at(backend, lora=LoraSpec(), steps=0)
    new, tuned = looked_at(backend, steps=0), looked_at(backend)
    recomputed = looked_at(backend, recompute=Recompute.full)
    narrow = looked_at(backend, lora=LoraSpec(rank=2, targets=["linear_qkv"]), steps=0)["trained"]
    first = "decoder.layers.0.self_attention.linear_qkv.lora.a"
    found = {
        "trained": list(tuned["trained"]),
        "moved": sorted(name for name, tensor in tuned["after"].items() if not tensor.equal(tuned["before"][name])),
        "new_adapters_add": distance(new, plain),
        "trained_adapters_add": distance(tuned, plain),
        "merged_differs_by": float((tuned["merged_logits"] - tuned["logits"]).abs().max()),
        "recomputed_differs_by": distance(recomputed, tuned),
        "narrow": {
            first: list(narrow[first]),
            "rank": min(narrow[first]),
            "linears": sum(name.endswith("lora.a") for name in narrow),
        },
    }
    json.dump(found, sys.stdout)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of a logit."""
    return float((one["logits"] - other["logits"]).abs().max())


def looked_at(
    backend: Any,
    *,
    lora: LoraSpec = LoraSpec(rank=4, alpha=16.0),  # noqa: B008 - never changed
    steps: int = STEPS,
    recompute: Recompute = Recompute.none,
) -> dict[str, Any]:
    """Trains a model for some steps; its weights before and after, its logits, and those with adapters merged."""
    import torch

    from pipeline.datasets.opening import open_data
    from pipeline.training import megatron
    from pipeline.training.data import samplers, shape_of
    from pipeline.training.huggingface import merge_adapters
    from pipeline.training.megatron.loading import whole_weights

    experiment = tiny_experiment(steps=steps)
    experiment.recipe.lora, experiment.techniques.recompute = lora, recompute
    experiment.optimizer.lr, experiment.optimizer.warmup_steps = 2e-2, 0
    plan = plan_for(experiment)
    with build_probe.ranks(plan.layout, 1, backend):
        model = megatron.build_model(experiment, plan, backend)
        gpt = model[0].module
        before = {name: tensor.clone() for name, tensor in whole_weights(gpt).items()}
        optimizer = megatron.build_optimizer(model, experiment)
        opened = open_data(experiment.data, shape_of(experiment))
        data = samplers(opened, experiment, plan.layout, dp_rank=0, cp_rank=0, device=backend.device)
        for step in range(1, steps + 1):
            megatron.clear_gradients(model, optimizer)
            megatron.forward_backward(model, data.train.batches(step), plan.layout, experiment.recipe.sequence_length)
            megatron.optimizer_step(optimizer)
        after = {name: tensor.clone() for name, tensor in whole_weights(gpt).items()}
        found = {
            "before": before,
            "after": after,
            "trained": {name: p.shape for name, p in gpt.named_parameters() if p.requires_grad},
            "logits": logits_of(gpt),
        }
        if lora.rank:
            merged = merge_adapters(after, scale=lora.alpha / lora.rank)
            with torch.no_grad():
                for name, parameter in gpt.named_parameters():
                    parameter.copy_(merged[name]) if name in merged else parameter.zero_()
            found["merged_logits"] = logits_of(gpt)
        return found


def logits_of(gpt: Any) -> Any:
    """Logits of fixed tokens."""
    import torch

    tokens = torch.arange(40, 72)[None]
    gpt.eval()
    with torch.no_grad():
        logits = gpt(tokens, torch.arange(32)[None], None).clone()
    gpt.train()
    return logits


if __name__ == "__main__":
    main()
