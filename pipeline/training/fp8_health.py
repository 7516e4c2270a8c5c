"""How linear layers in 8 bits are doing: largest magnitudes, scales, and values that didn't fit.

Read from what Transformer Engine keeps beside its layers. Delayed scaling keeps a history; current scaling keeps the
last tensor's alone, so what overflows can't be told there (nothing does, by construction); scales of blocks live in
the tensors themselves and leave nothing behind to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_DIRECTIONS = ("scaling_fwd", "scaling_bwd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """Tensors that share a layer and a direction."""

    history: torch.Tensor
    """Largest magnitudes, [steps, tensors], the newest last; one row where only the last tensor's is kept."""
    scale: torch.Tensor
    """What each is multiplied with before it is rounded, [tensors]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Of all scaled tensors of a rank, or of a run."""

    amax: float
    scale_least: float
    scale_most: float
    overflows: float
    """Tensors whose newest magnitude was beyond all that their scale had been taken from."""
    broken: float
    """Tensors whose magnitude or scale isn't finite."""


def metrics(health: Health) -> dict[str, float]:
    """By the names they are tracked under."""
    return {
        "fp8/amax": health.amax,
        "fp8/scale_min": health.scale_least,
        "fp8/scale_max": health.scale_most,
        "fp8/overflows": health.overflows,
        "fp8/not_finite": health.broken,
    }


def read_health(modules: Iterable[torch.nn.Module], device: torch.device) -> Health | None:
    """Over all ranks, each of which has to call it; None where no rank keeps anything."""
    own = summarize(scaled for module in modules for scaled in _of_module(module))
    low = -math.inf
    known = [own.amax, -own.scale_least, own.scale_most] if own else [low, low, low]
    extremes = torch.tensor(known, dtype=torch.float64, device=device)
    counts = torch.tensor([own.overflows, own.broken] if own else [0.0, 0.0], dtype=torch.float64, device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    dist.all_reduce(counts)
    amax, least, most = extremes.tolist()
    if most == low:
        return None
    overflows, broken = counts.tolist()
    return Health(amax=amax, scale_least=-least, scale_most=most, overflows=overflows, broken=broken)


def summarize(tensors: Iterable[Scaled]) -> Health | None:
    """The health of this rank's tensors; None when there are none in use."""
    amaxes, scales, overflows = [], [], 0
    for one in tensors:
        newest, earlier = one.history[-1], one.history[:-1]
        used = newest > 0
        amaxes.append(newest[used])
        scales.append(one.scale.flatten()[used])
        if len(earlier):
            taken_from = earlier.max(dim=0).values
            overflows += int(((newest > taken_from) & (taken_from > 0)).sum())
    if not amaxes or not sum(len(values) for values in amaxes):
        return None
    amax, scale = torch.cat(amaxes).double(), torch.cat(scales).double()
    broken = ~(torch.isfinite(amax) & torch.isfinite(scale))
    return Health(
        amax=float(amax.max()),
        scale_least=float(scale.min()),
        scale_most=float(scale.max()),
        overflows=float(overflows),
        broken=float(broken.sum()),
    )


def _of_module(module: Any) -> Iterator[Scaled]:
    for direction in _DIRECTIONS:
        state = getattr(module, "fp8_meta", {}).get(direction)
        history = getattr(state, "amax_history", None)
        if history is not None and state is not None:
            # Row 0 is where the step that goes on is written; the others age towards row 1.
            yield Scaled(history=history.roll(-1, dims=0)[:-1] if len(history) > 1 else history, scale=state.scale)
            continue
        for quantizer in getattr(module, "quantizers", {}).get(direction, ()):
            amax, scale = getattr(quantizer, "amax", None), getattr(quantizer, "scale", None)
            if amax is not None and scale is not None:
                yield Scaled(history=amax.view(1, -1), scale=scale)
