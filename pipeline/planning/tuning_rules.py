"""Which adapters can be had beside which model and techniques."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.types import Experiment, Sharding

TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


def tuning_problems(experiment: Experiment) -> Iterator[str]:
    """What of `recipe.lora` can't be trained as asked; a line each."""
    lora, model = experiment.recipe.lora, experiment.model
    if lora.rank < 0 or lora.alpha <= 0:
        yield f"recipe.lora: rank {lora.rank}, alpha {lora.alpha:g}; a rank is at least 0, alpha is above 0"
    if unknown := sorted(set(lora.targets) - set(TARGETS)):
        yield f"recipe.lora.targets: {', '.join(unknown)}; there are: {', '.join(TARGETS)}"
    if not lora.rank:
        return
    if not lora.targets:
        yield "recipe.lora.targets: is empty; with recipe.lora.rank above 0 something has to be trained"
    if model.moe is not None and set(lora.targets) & {"linear_fc1", "linear_fc2"}:
        yield "recipe.lora.targets: experts take no adapters; give [linear_qkv, linear_proj]"
    if model.mla is not None:
        yield "recipe.lora: latent attention takes no adapters"
    if experiment.techniques.sharding is not Sharding.none:
        yield "recipe.lora: can't be had with techniques.sharding; give techniques.sharding=none"
