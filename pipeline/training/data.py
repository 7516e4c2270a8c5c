"""Which samples a rank trains on at a step: a function of the seed and the step alone, so it resumes anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from pipeline.types import Layout

_WORD = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One micro-batch of this rank; each field is int64 of shape [micro_batch, sequence_length / cp]."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """The token that follows each token."""
    positions: torch.Tensor
    """Where each token stands in its sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Cuts the corpus into samples and deals them out over steps, micro-batches and ranks."""

    corpus: npt.NDArray[np.uint8]
    samples: int
    """Samples in the corpus; sample i starts at token i * sequence_length."""
    sequence_length: int
    seed: int
    layout: Layout
    dp_rank: int
    cp_rank: int
    device: torch.device

    def batches(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches of a step (counted from 1), in the order they are run in."""
        for micro in range(self.layout.num_microbatches):
            yield self._batch(sample_order(self._places(step, micro), samples=self.samples, seed=self.seed))

    def sample_ids(self, step: int, micro: int) -> list[int]:
        """Which samples this rank's micro-batch of a step is made of."""
        return [int(i) for i in sample_order(self._places(step, micro), samples=self.samples, seed=self.seed)]

    def _places(self, step: int, micro: int) -> npt.NDArray[np.int64]:
        """Places in the endless order of samples: each micro-batch takes the next share for each dp rank in turn."""
        size = self.layout.micro_batch
        first = (step - 1) * self.layout.global_batch + (micro * self.layout.dp + self.dp_rank) * size
        return np.arange(first, first + size)

    def _batch(self, chosen: npt.NDArray[np.int64]) -> Batch:
        window = np.arange(self.sequence_length + 1)
        text = self.corpus[chosen[:, None] * self.sequence_length + window].astype(np.int64)
        return Batch(
            tokens=self._local(text[:, :-1]),
            labels=self._local(text[:, 1:]),
            positions=self._local(np.tile(window[:-1], (len(chosen), 1))),
        )

    def _local(self, whole: npt.NDArray[np.int64]) -> torch.Tensor:
        """This context-parallel rank's part: chunks r and 2n-1-r of 2n, so that a causal mask costs all the same."""
        if self.layout.cp > 1:
            chunks = np.split(whole, 2 * self.layout.cp, axis=1)
            whole = np.concatenate([chunks[self.cp_rank], chunks[-1 - self.cp_rank]], axis=1)
        return torch.from_numpy(np.ascontiguousarray(whole)).to(self.device)


def sample_order(places: npt.NDArray[np.int64], *, samples: int, seed: int) -> npt.NDArray[np.int64]:
    """Which sample stands at each place; every epoch is a permutation of its own."""
    epochs, within = np.divmod(places, samples)
    return np.array([_epoch_order(samples, seed, int(e))[w] for e, w in zip(epochs, within, strict=True)])


@lru_cache(maxsize=2)  # a micro-batch touches two epochs at most, unless the corpus is tiny
def _epoch_order(samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    # numpy keeps RandomState's stream for good; its newer generators may change theirs between releases.
    words = [seed & _WORD, (seed >> 32) & _WORD, epoch]
    return np.random.RandomState(words).permutation(samples)
