"""Watches over the numbers of a run: what isn't finite, what jumps, which batch it was, whether it was the machine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeline.training import megatron, megatron_checkpoint
from pipeline.training.data import Batch, Sampler
from pipeline.training.events import EventSink
from pipeline.training.failures import HardwareSuspected, NonFinite, RunFailed
from pipeline.training.spikes import Spikes
from pipeline.types import Guard, SpikeAction

_SAMPLES_NAMED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """A micro-batch behind an anomaly."""

    rank: int
    micro_batch: int
    loss: float
    samples: tuple[int, ...]
    """Numbers of its samples in the data."""

    def __str__(self) -> str:
        named = ", ".join(map(str, self.samples[:_SAMPLES_NAMED]))
        more = len(self.samples) - _SAMPLES_NAMED
        return f"micro-batch {self.micro_batch} of rank {self.rank} (samples {named}{f' and {more} more' * (more > 0)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What forward and backward of one step gave on this rank, still on its device."""

    batches: torch.Tensor
    """Of each micro-batch the sum of its tokens' losses and their number, float64 [micro-batches, 2], on ranks of the
    last stage; on others [0, 2]."""
    gradients: torch.Tensor
    """A sum over its gradients, reduced ones where they are, a float64 scalar."""

    def losses(self) -> list[float]:
        """Mean loss of each micro-batch."""
        return [total / tokens if tokens else 0.0 for total, tokens in self.batches.tolist()]

    def equals(self, other: Outcome) -> bool:
        """Whether two runs of a step agree to the last bit; not a number equals itself here."""
        mine, theirs = (*self.losses(), float(self.gradients)), (*other.losses(), float(other.gradients))
        pairs = zip(mine, theirs, strict=True)
        return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


class NumericsGuard:
    """One rank's part in watching; the decisions rest on values that all ranks have."""

    def __init__(self, options: Guard, sampler: Sampler, sink: EventSink) -> None:
        self._options = options
        self._sampler = sampler
        self._sink = sink
        self._spikes = Spikes(options.spike_deviations)
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._rng: dict[str, Any] | None = None
        self._checksum = 0

    def before_step(self) -> None:
        """Keeps what a second run of the step needs."""
        if self._options.rerun:
            self._rng = megatron_checkpoint.rng_state()

    def batches(self, step: int) -> Iterator[Batch]:
        """The step's batches, summed up on the way where that is asked for."""
        self._checksum = 0
        for batch in self._sampler.batches(step):
            if self._options.data_checksum:
                self._checksum += sum(zlib.crc32(row.numpy().tobytes()) for row in batch.tokens.cpu())
            yield batch

    def check(
        self, step: int, loss: float, *, bad_gradients: bool, first: Outcome, again: Callable[[], Outcome]
    ) -> None:
        """Raises NonFinite or HardwareSuspected on all ranks when the step can't be gone on from; warns of a spike.

        `again` runs forward and backward of the step once more.
        """
        if self._options.data_checksum:
            self._compare_data(step)
        if not math.isfinite(loss):
            self._end(step, f"the loss ({loss}) is not finite", first, again)
        if bad_gradients:
            self._end(step, "a gradient is not finite", first, again)
        if self._options.on_spike is not SpikeAction.ignore and self._spikes.is_spike(loss):
            what = f"the loss jumped to {loss:.4g} (up to {self._spikes.bound():.4g} was usual)"
            if self._options.on_spike is SpikeAction.end:
                self._end(step, what, first, again)
            self._report(step, what, self._culprits(step, first))

    def require_finite_norm(self, step: int, norm: float) -> None:
        """Raises NonFinite on all ranks; the norm is known after the optimizer only."""
        if not math.isfinite(norm):
            raise self._failure(NonFinite, step, f"the gradient norm ({norm}) is not finite", [])

    # ----------------------------------------------------------------- what becomes of an anomaly

    def _end(self, step: int, what: str, first: Outcome, again: Callable[[], Outcome]) -> None:
        culprits = self._culprits(step, first)
        if not self._options.rerun:
            raise self._failure(NonFinite, step, what, culprits)
        assert self._rng is not None
        megatron_checkpoint.set_rng_state(self._rng)
        differing = [rank for rank, same in enumerate(self._gathered(again().equals(first))) if not same]
        if not differing:
            raise self._failure(NonFinite, step, f"{what}, and so it was when the step was run again", culprits)
        ranks = ", ".join(map(str, differing[:_SAMPLES_NAMED]))
        what = f"{what}, but not so when the step was run again: rank {ranks} computed something else"
        raise self._failure(HardwareSuspected, step, f"{what}; suspected hardware fault", culprits)

    def _failure(self, kind: type[RunFailed], step: int, what: str, culprits: Sequence[Culprit]) -> RunFailed:
        self._report(step, what, culprits)
        hint = (
            ""
            if kind is HardwareSuspected
            else "; lower optimizer.lr, raise optimizer.warmup_steps or look at the data"
        )
        return kind(f"step {step}: {what}{_where(culprits)}{hint}")

    def _report(self, step: int, what: str, culprits: Sequence[Culprit]) -> None:
        if self._rank == 0:
            found = [asdict(culprit) for culprit in culprits]
            self._sink.emit("anomaly", {"step": step, "what": what, "micro_batches": found})
            self._sink.emit("warning", {"message": f"step {step}: {what}{_where(culprits)}"})

    def _culprits(self, step: int, outcome: Outcome) -> list[Culprit]:
        """The micro-batches whose loss isn't finite, else the one with the largest loss; the same on all ranks."""
        own = [
            Culprit(rank=self._rank, micro_batch=micro, loss=loss, samples=tuple(self._sampler.sample_ids(step, micro)))
            for micro, loss in enumerate(outcome.losses())
        ]
        everywhere = [culprit for culprits in self._gathered(own) for culprit in culprits]
        bad = [culprit for culprit in everywhere if not math.isfinite(culprit.loss)]
        return bad or sorted(everywhere, key=lambda culprit: -culprit.loss)[:1]

    # ----------------------------------------------------------------- data

    def _compare_data(self, step: int) -> None:
        """Ranks of one place in data and context parallelism must have had the same tokens."""
        place = (self._sampler.dp_rank, self._sampler.cp_rank)
        seen: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (where, checksum) in enumerate(self._gathered((place, self._checksum))):
            other, expected = seen.setdefault(where, (rank, checksum))
            if checksum != expected:
                raise RunFailed(f"step {step}: ranks {other} and {rank} must have the same tokens and have not")
        if self._rank == 0:
            total = sum(checksum for _, checksum in seen.values())
            self._sink.emit("data_checksum", {"step": step, "checksum": total})

    def _gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self._ranks
        dist.all_gather_object(values, value)
        return values


def outcome_of(losses: Sequence[torch.Tensor], model: Any, device: torch.device) -> Outcome:
    """What a step gave, as it can be compared with a second run of it; losses are sums and numbers of tokens, [2]."""
    none = torch.zeros((0, 2), dtype=torch.float64, device=device)
    return Outcome(
        batches=torch.stack(list(losses)) if losses else none, gradients=megatron.gradient_sum(model, device)
    )


def _where(culprits: Sequence[Culprit]) -> str:
    if not culprits:
        return ""
    more = f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    return f"; {culprits[0]}{more}"
