"""Measured runs made up for tests of calibrations."""

from __future__ import annotations

import random

from pipeline.planning.fitting import Observation


def seen(
    ratio: float, *, gpu: str = "H100", model: str = "m", stack: str = "megatron-te", weight: float = 1
) -> Observation:
    return Observation(kind="dense", stack=stack, gpu=gpu, rate="bf16", model=model, log_ratio=ratio, weight=weight)


def many(count: int = 60, seed: int = 1, gpus: str = "ABC") -> list[Observation]:
    """Runs whose GPUs and models have their own factors, and noise."""
    draw, pick = random.Random(seed), random.Random(2)
    machines = {name: draw.gauss(0.1, 0.1) for name in gpus}
    models = {name: draw.gauss(0, 0.03) for name in "abcd"}
    chosen = [(pick.choice(gpus), pick.choice("abcd")) for _ in range(count)]
    return [seen(machines[gpu] + models[model] + draw.gauss(0, 0.03), gpu=gpu, model=model) for gpu, model in chosen]
