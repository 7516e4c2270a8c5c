"""The training loop: one optimizer step after the other, and what each of them measured."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeline.training import megatron
from pipeline.training.data import Sampler
from pipeline.training.events import EventSink
from pipeline.training.failures import NonFinite
from pipeline.types import Recipe

_MEMORY_EVERY_STEPS = 10
_KIB_PER_GIB = 1 << 20
_BYTES_PER_GIB = 1 << 30
_GROWN = 1.001
"""A new peak of GPU memory is told from this ratio on: a line of each rank now and then, not all the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """When to look at the loss on held-out data, and at how much of it."""

    sampler: Sampler
    every_steps: int
    batches: int
    """Global batches."""

    @classmethod
    def of(cls, sampler: Sampler | None, recipe: Recipe) -> Validation | None:
        """What a recipe asks for; None where it asks for nothing."""
        if sampler is None or not recipe.eval_every:
            return None
        return cls(sampler=sampler, every_steps=recipe.eval_every, batches=recipe.eval_batches)

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether to look after this step; after the last one in any case."""
        return step % self.every_steps == 0 or step == last


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """All that one rank needs to train."""

    model: Any
    optimizer: Any
    schedule: Any
    sampler: Sampler
    steps: int
    sink: EventSink
    reports: bool
    """Whether this is the rank that reports the measurements of all."""
    validation: Validation | None = None
    """None: the loss on held-out data is never looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step measured, equal on all ranks but for the time."""

    loss: float
    grad_norm: float
    learning_rate: float
    seconds: float


def train(trainer: Trainer) -> None:
    """Runs all steps; raises NonFinite at the first loss or gradient that isn't finite."""
    told_gib = 0.0
    for step in range(1, trainer.steps + 1):
        result = run_step(trainer, step)
        _require_finite(trainer, step, result)
        if step == 1:
            trainer.sink.emit("phase", {"name": "first_step", "seconds": result.seconds})
        values = metrics_of(result, trainer.sampler, step)
        if step % _MEMORY_EVERY_STEPS == 0 or step == trainer.steps:
            values["memory/rss_max_gib"] = _largest_rss_gib(trainer.sampler.device)
            told_gib = _report_gpu_memory(trainer, step, told_gib)
        if trainer.validation and trainer.validation.is_due(step, last=trainer.steps):
            values["validation/loss"] = validate(trainer.model, trainer.validation)
        if trainer.reports:
            trainer.sink.emit("metrics", {"step": step, "values": values})


def validate(model: Any, validation: Validation) -> float:
    """Mean loss over the same held-out tokens each time, equal on all ranks; the model is left as it was."""
    sampler = validation.sampler
    losses = [
        loss
        for batch in range(1, validation.batches + 1)
        for loss in megatron.forward_only(model, sampler.batches(batch), sampler.layout, sampler.sequence_length)
    ]
    return _mean_over_ranks(losses, sampler.device)


def run_step(trainer: Trainer, step: int) -> StepResult:
    """One optimizer step; raises NonFinite on a rank that accumulated a gradient that isn't finite."""
    start = time.perf_counter()
    rate = megatron.learning_rate(trainer.schedule)
    losses = _accumulate(trainer, step)
    grad_norm = megatron.optimizer_step(trainer.optimizer)
    megatron.advance_schedule(trainer.schedule)
    loss = _mean_over_ranks(losses, trainer.sampler.device)
    return StepResult(loss=loss, grad_norm=grad_norm, learning_rate=rate, seconds=time.perf_counter() - start)


def metrics_of(result: StepResult, sampler: Sampler, step: int) -> dict[str, float]:
    """A step's metrics by name."""
    tokens = sampler.layout.global_batch * sampler.sequence_length
    return {
        "train/loss": result.loss,
        "train/grad_norm": result.grad_norm,
        "train/learning_rate": result.learning_rate,
        "train/consumed_tokens": float(step * tokens),
        "throughput/step_time_s": result.seconds,
        "throughput/tokens_per_s": tokens / result.seconds,
    }


def _accumulate(trainer: Trainer, step: int) -> list[torch.Tensor]:
    megatron.clear_gradients(trainer.model, trainer.optimizer)
    sampler = trainer.sampler
    try:
        return megatron.forward_backward(trainer.model, sampler.batches(step), sampler.layout, sampler.sequence_length)
    except RuntimeError as error:
        # Megatron's own check raises before gradients are reduced, on the ranks that have the bad ones only.
        if megatron.has_finite_gradients(trainer.model):
            raise
        raise _non_finite(step, "a gradient of this rank", trainer.sink) from error


def _mean_over_ranks(losses: list[torch.Tensor], device: torch.device) -> float:
    """Mean loss of a token over the ranks that know it, those of the last stage, given to all."""
    known = torch.zeros(2, dtype=torch.float64, device=device)
    for loss in losses:  # a sum and its number of tokens
        known += loss
    dist.all_reduce(known)
    return float(known[0] / known[1])


def _largest_rss_gib(device: torch.device) -> float:
    """Largest resident memory that any rank's process had so far, GiB."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = torch.tensor(kib, dtype=torch.int64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest) / _KIB_PER_GIB


def _report_gpu_memory(trainer: Trainer, step: int, told_gib: float) -> float:
    """Tells how much of its GPU this rank used at most, when that has grown since `told_gib`; nothing on a CPU."""
    device = trainer.sampler.device
    if device.type != "cuda":
        return told_gib
    allocated = torch.cuda.max_memory_allocated(device) / _BYTES_PER_GIB
    if allocated < told_gib * _GROWN:
        return told_gib
    reserved = torch.cuda.max_memory_reserved(device) / _BYTES_PER_GIB
    trainer.sink.emit("memory", {"step": step, "allocated_gib": allocated, "reserved_gib": reserved})
    return allocated


def _require_finite(trainer: Trainer, step: int, result: StepResult) -> None:
    """Loss and norm are equal on all ranks, so all stop at the same step and one of them says why."""
    for what, value in (("the loss", result.loss), ("the gradient norm", result.grad_norm)):
        if not math.isfinite(value):
            raise _non_finite(step, f"{what} ({value})", trainer.sink if trainer.reports else None)


def _non_finite(step: int, what: str, sink: EventSink | None) -> NonFinite:
    message = f"step {step}: {what} is not finite; lower optimizer.lr or raise optimizer.warmup_steps"
    if sink is not None:
        sink.emit("warning", {"message": message})
    return NonFinite(message)
