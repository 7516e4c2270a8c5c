"""The training loop: one optimizer step after the other, what each of them measured, and when it is left early."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from pipeline.training import attention_kernel, fp8_health, megatron
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.data import Sampler
from pipeline.training.events import EventSink
from pipeline.training.failures import Interrupted
from pipeline.training.guard import NumericsGuard, Outcome, outcome_of
from pipeline.training.heartbeat import Heartbeat
from pipeline.training.notice import Notice
from pipeline.training.profiling import Profiler, timed_batches
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


@dataclass(slots=True)
class PeakMemory:
    """The largest use of this rank's GPU that was told so far."""

    told_gib: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """All that one rank needs to train."""

    model: Any
    optimizer: Any
    schedule: Any
    sampler: Sampler
    first_step: int
    """Counted from 1; more where the run was resumed."""
    steps: int
    sink: EventSink
    checkpoints: Checkpoints
    guard: NumericsGuard
    profiler: Profiler
    heartbeat: Heartbeat
    notice: Notice
    reports: bool
    """Whether this is the rank that reports the measurements of all."""
    validation: Validation | None = None
    """None: the loss on held-out data is never looked at."""
    peak: PeakMemory = field(default_factory=PeakMemory)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step measured, equal on all ranks but for the time."""

    loss: float
    grad_norm: float
    learning_rate: float
    seconds: float
    told_to_end: bool
    """Whether any rank was given notice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreed:
    """What all ranks know after forward and backward, from one all-reduce."""

    loss: float
    told_to_end: bool
    bad_gradients: bool


def train(trainer: Trainer) -> None:
    """Runs the steps that are left.

    Raises Interrupted after a step that is saved when a rank was given notice, NonFinite or HardwareSuspected when
    numbers can't be gone on from; each on all ranks at the same step.
    """
    try:
        for step in range(trainer.first_step, trainer.steps + 1):
            result = _timed_step(trainer, step)
            if step == trainer.first_step:
                trainer.sink.emit("phase", {"name": "first_step", "seconds": result.seconds})
                _tell_attention(trainer)
            _report(trainer, step, result)
            _save(trainer, step, result)
    finally:
        trainer.profiler.close()
    with trainer.heartbeat.busy("checkpoint"):
        trainer.checkpoints.poll(wait=True)
    trainer.heartbeat.over()


def _timed_step(trainer: Trainer, step: int) -> StepResult:
    trainer.heartbeat.begin_step(step)
    with trainer.profiler.step(step):
        result = run_step(trainer, step)
    if step > trainer.first_step:
        trainer.heartbeat.stepped(result.seconds)
    elif trainer.steps > step:
        trainer.heartbeat.stepped(max(result.seconds, 1.0))
    return result


def validate(model: Any, validation: Validation) -> float:
    """Mean loss over the same held-out tokens each time, equal on all ranks; the model is left as it was."""
    sampler = validation.sampler
    known = torch.zeros(2, dtype=torch.float64, device=sampler.device)
    for batch in range(1, validation.batches + 1):
        for loss in megatron.forward_only(model, sampler.batches(batch), sampler.layout, sampler.sequence_length):
            known += loss  # a sum and its number of tokens, on ranks of the last stage
    dist.all_reduce(known)
    return float(known[0] / known[1])


def run_step(trainer: Trainer, step: int) -> StepResult:
    """One optimizer step; raises as `train` does."""
    start = time.perf_counter()
    rate = megatron.learning_rate(trainer.schedule)
    trainer.guard.before_step()
    losses = _accumulate(trainer, step)
    first = outcome_of(losses, trainer.model, trainer.sampler.device)
    agreed = _agree(trainer, first)

    def again() -> Outcome:
        return outcome_of(_accumulate(trainer, step), trainer.model, trainer.sampler.device)

    trainer.guard.check(step, agreed.loss, bad_gradients=agreed.bad_gradients, first=first, again=again)
    with trainer.profiler.part("optimizer"):
        grad_norm = megatron.optimizer_step(trainer.optimizer)
    trainer.guard.require_finite_norm(step, grad_norm)
    megatron.advance_schedule(trainer.schedule)
    return StepResult(
        loss=agreed.loss,
        grad_norm=grad_norm,
        learning_rate=rate,
        seconds=time.perf_counter() - start,
        told_to_end=agreed.told_to_end,
    )


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


def _report(trainer: Trainer, step: int, result: StepResult) -> None:
    values = metrics_of(result, trainer.sampler, step)
    if step % _MEMORY_EVERY_STEPS == 0 or step == trainer.steps:
        values["memory/rss_max_gib"] = _largest_rss_gib(trainer.sampler.device)
        _report_gpu_memory(trainer, step)
        values |= _low_precision_metrics(trainer)
    if trainer.validation and trainer.validation.is_due(step, last=trainer.steps):
        with trainer.heartbeat.busy("validation"):
            values["validation/loss"] = validate(trainer.model, trainer.validation)
    if trainer.reports:
        trainer.sink.emit("metrics", {"step": step, "values": values})


def _save(trainer: Trainer, step: int, result: StepResult) -> None:
    """What the recipe wants saved; when a rank was given notice, this step, and then no more."""
    is_last = step == trainer.steps
    leaves = result.told_to_end and not is_last
    if not (leaves or trainer.checkpoints.due(step)):
        trainer.checkpoints.poll()
        return
    with trainer.heartbeat.busy("checkpoint"), trainer.notice.unheard():
        saved = trainer.checkpoints.save(step, wait=is_last or leaves)
    if leaves:
        trainer.heartbeat.over()
        newest = (
            "" if saved else f"; it could not be saved, the newest checkpoint is of {trainer.checkpoints.last_saved}"
        )
        raise Interrupted(f"told to end early: step {step} is done{' and saved' * saved}{newest}")


def _accumulate(trainer: Trainer, step: int) -> list[torch.Tensor]:
    megatron.clear_gradients(trainer.model, trainer.optimizer)
    sampler = trainer.sampler
    batches = timed_batches(trainer.guard.batches(step), trainer.profiler)
    return megatron.forward_backward(trainer.model, batches, sampler.layout, sampler.sequence_length)


def _agree(trainer: Trainer, own: Outcome) -> _Agreed:
    """Mean loss of a token, known to ranks of the last stage, and whether any rank has something to say."""
    told = torch.full((), float(trainer.notice.given), dtype=torch.float64, device=trainer.sampler.device)
    is_bad = (~own.gradients.isfinite()).double()
    # One reduction and one look at its result: each look waits for the device.
    totals = torch.cat([own.batches.sum(0), torch.stack([told, is_bad])])
    dist.all_reduce(totals)
    total, count, ranks_told, ranks_bad = totals.tolist()
    return _Agreed(loss=total / count, told_to_end=ranks_told > 0, bad_gradients=ranks_bad > 0)


def _largest_rss_gib(device: torch.device) -> float:
    """Largest resident memory that any rank's process had so far, GiB."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = torch.tensor(kib, dtype=torch.int64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest) / _KIB_PER_GIB


def _tell_attention(trainer: Trainer) -> None:
    kernel = attention_kernel.chosen_kernel()
    if kernel is None or not trainer.reports:
        return
    trainer.sink.emit("attention", {"kernel": kernel})
    warning = attention_kernel.warning_of(kernel)
    if warning is not None:
        trainer.sink.emit("warning", {"message": warning})


def _low_precision_metrics(trainer: Trainer) -> dict[str, float]:
    """How layers in 8 bits are doing; nothing where there are none."""
    if trainer.model[0].config.fp8 is None:
        return {}
    modules = (module for chunk in trainer.model for module in chunk.modules())
    health = fp8_health.read_health(modules, trainer.sampler.device)
    return {} if health is None else fp8_health.metrics(health)


def _report_gpu_memory(trainer: Trainer, step: int) -> None:
    """Tells how much of its GPU this rank used at most, when that has grown since it was told; nothing on a CPU."""
    device = trainer.sampler.device
    if device.type != "cuda":
        return
    allocated = torch.cuda.max_memory_allocated(device) / _BYTES_PER_GIB
    if allocated < trainer.peak.told_gib * _GROWN:
        return
    trainer.peak.told_gib = allocated
    reserved = torch.cuda.max_memory_reserved(device) / _BYTES_PER_GIB
    trainer.sink.emit("memory", {"step": step, "allocated_gib": allocated, "reserved_gib": reserved})
