"""Which samples a rank trains on at a step: a function of the seed and the samples consumed, so it resumes anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from pipeline.datasets.opening import OpenedData, Shape
from pipeline.datasets.order import Blend, make_blend, shuffled
from pipeline.datasets.samples import Sample, SampleSource
from pipeline.errors import DataError
from pipeline.types import Experiment, Layout

_SEED_OF_SOURCE = 0x2545F4914F6CDD1D
"""Keeps the orders of a blend's sources apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One micro-batch of this rank; each field is of shape [micro_batch, sequence_length / cp]."""

    tokens: torch.Tensor
    """int64."""
    labels: torch.Tensor
    """The token that follows each token, int64."""
    positions: torch.Tensor
    """Where each token stands in its sequence, or in its document, int64."""
    targets: torch.Tensor | None = None
    """Which labels are learnt, bool; None: all are."""
    documents: torch.Tensor | None = None
    """Which document of its row each token is of, ascending, int64; None: tokens see across documents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataState:
    """Where a run stands in its data: all that a checkpoint has to keep of it."""

    seed: int
    consumed_samples: int
    digest: str
    """Of what is read and how it is cut and blended, in hex."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Deals samples out over steps, micro-batches and ranks."""

    sources: tuple[SampleSource, ...]
    blend: Blend
    sequence_length: int
    seed: int
    layout: Layout
    dp_rank: int
    cp_rank: int
    device: torch.device
    reset_positions: bool = False
    reset_attention: bool = False
    first_step: int = 1
    """The step that follows `consumed_before`."""
    consumed_before: int = 0
    """Samples consumed before `first_step`."""

    def batches(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches of a step (counted from 1), in the order they are run in."""
        for micro in range(self.layout.num_microbatches):
            yield self._batch([self.sources[source].read(sample) for source, sample in self._places(step, micro)])

    def consumed(self, steps: int) -> int:
        """Samples consumed once this many steps were made."""
        return self.consumed_before + (steps + 1 - self.first_step) * self.layout.global_batch

    def state(self, steps: int) -> DataState:
        """What a checkpoint keeps after this many steps."""
        return DataState(seed=self.seed, consumed_samples=self.consumed(steps), digest=self._digest())

    def resumed(self, state: DataState, *, steps: int) -> Sampler:
        """The sampler that goes on where a checkpoint of `steps` steps stopped, under whatever layout it has now.

        Raises DataError when the data or its order is not what the checkpoint was trained on.
        """
        for what, kept, now in (("seed", state.seed, self.seed), ("data", state.digest, self._digest())):
            if kept != now:
                raise DataError(
                    f"{what}: the checkpoint was trained on {kept}, this run reads {now}; resume with the same data"
                )
        return replace(self, first_step=steps + 1, consumed_before=state.consumed_samples)

    def sample_ids(self, step: int, micro: int) -> list[int]:
        """Which samples this rank's micro-batch of a step is made of, numbered within their source."""
        return [sample for _, sample in self._places(step, micro)]

    def _digest(self) -> str:
        shape = f"{self.sequence_length} {self.blend.counts.tolist()}".encode()
        whole = b"".join([shape, *(source.digest for source in self.sources)])
        return hashlib.blake2b(whole, digest_size=16).hexdigest()

    def _places(self, step: int, micro: int) -> Iterator[tuple[int, int]]:
        """Source and sample of each row: each micro-batch takes the next share for each dp rank in turn."""
        size = self.layout.micro_batch
        first = self.consumed(step - 1) + (micro * self.layout.dp + self.dp_rank) * size
        chosen, within = self.blend.places(np.arange(first, first + size))
        samples = np.empty_like(within)
        for source in np.unique(chosen).tolist():
            mine, seed = chosen == source, self.seed ^ (source * _SEED_OF_SOURCE)
            samples[mine] = shuffled(within[mine], size=self.sources[source].samples, seed=seed)
        return zip(chosen.tolist(), samples.tolist(), strict=True)

    def _batch(self, samples: Sequence[Sample]) -> Batch:
        text = np.stack([sample.tokens for sample in samples])
        documents = np.stack([sample.documents for sample in samples])
        return Batch(
            tokens=self._local(text[:, :-1]),
            labels=self._local(text[:, 1:]),
            positions=self._local(positions_of(documents, reset=self.reset_positions)),
            targets=self._targets(samples),
            documents=self._local(documents) if self.reset_attention else None,
        )

    def _targets(self, samples: Sequence[Sample]) -> torch.Tensor | None:
        targets = [sample.targets for sample in samples if sample.targets is not None]
        return self._local(np.stack(targets)) if targets else None

    def _local(self, whole: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> torch.Tensor:
        """This context-parallel rank's part: chunks r and 2n-1-r of 2n, so that a causal mask costs all the same."""
        if self.layout.cp > 1:
            chunks = np.split(whole, 2 * self.layout.cp, axis=1)
            whole = np.concatenate([chunks[self.cp_rank], chunks[-1 - self.cp_rank]], axis=1)
        part = torch.from_numpy(np.ascontiguousarray(whole))
        if self.device.type != "cuda":
            return part
        # From page-locked memory the copy is queued; any other would wait for all that the device has still to do.
        return part.pin_memory().to(self.device, non_blocking=True)


def positions_of(documents: npt.NDArray[np.int64], *, reset: bool) -> npt.NDArray[np.int64]:
    """Position of each token, of the shape [rows, length] of its documents; `reset`: counted in its document."""
    places = np.broadcast_to(np.arange(documents.shape[1]), documents.shape)
    if not reset:
        return places
    is_first = np.diff(documents, axis=1, prepend=documents[:, :1] - 1) != 0
    return np.asarray(places - np.maximum.accumulate(np.where(is_first, places, 0), axis=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """What a rank reads of the data that all ranks opened."""

    train: Sampler
    validation: Sampler | None
    """None: nothing is held out."""


def samplers(
    opened: OpenedData, experiment: Experiment, layout: Layout, *, dp_rank: int, cp_rank: int, device: torch.device
) -> RunData:
    """The samplers of a rank over data that was opened."""

    def over(sources: tuple[SampleSource, ...]) -> Sampler:
        weights = opened.weights if len(opened.weights) == len(sources) else (1.0,) * len(sources)
        return Sampler(
            sources=sources,
            blend=make_blend(weights),
            sequence_length=experiment.recipe.sequence_length,
            seed=experiment.seed,
            layout=layout,
            dp_rank=dp_rank,
            cp_rank=cp_rank,
            device=device,
            reset_positions=experiment.data.reset_positions,
            reset_attention=experiment.data.reset_attention,
        )

    return RunData(train=over(opened.train), validation=over(opened.held_out) if opened.held_out else None)


def shape_of(experiment: Experiment) -> Shape:
    """What samples of this experiment have to fit."""
    return Shape(length=experiment.recipe.sequence_length, vocab_size=experiment.model.vocab_size, seed=experiment.seed)
