"""Which sample stands at which place of the endless training order: arithmetic alone, so any place can be asked for.

Nothing here depends on how long a run is or how it is laid out over ranks, so a run resumes, is made longer or
changes its layout without a change of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.planning.data_rules import BLEND_PERIOD

Ids = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 6
_MASK_64 = (1 << 64) - 1


def shuffled(places: Ids, *, size: int, seed: int) -> Ids:
    """The sample at each place when `size` samples are walked epoch after epoch, each in an order of its own.

    A Feistel network over the smallest even number of bits that holds `size`, walked again until the result is
    below `size` (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"): a permutation of each epoch
    that costs no memory, however many samples there are.
    """
    epochs, within = np.divmod(places, size)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _epoch_keys(epochs, seed)
    found = within.astype(np.uint64)
    pending = np.ones(len(found), dtype=bool)
    while pending.any():
        found[pending] = _feistel(found[pending], keys[:, pending], half_bits)
        pending = found >= size
    return found.astype(np.int64)


def _feistel(words: _Words, keys: _Words, half_bits: int) -> _Words:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << shift) | right


def _epoch_keys(epochs: Ids, seed: int) -> _Words:
    """A key for each round and place, of shape [rounds, places]."""
    start = mix(mix(np.uint64(seed & _MASK_64)) ^ np.uint64((seed >> 64) & _MASK_64))
    of_epoch = mix(start ^ epochs.astype(np.uint64))
    return np.stack([mix(of_epoch ^ np.uint64(turn + 1)) for turn in range(_ROUNDS)])


def mix(words: npt.NDArray[np.uint64] | np.uint64) -> _Words:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit given."""
    words = np.atleast_1d(np.asarray(words, dtype=np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """How several sources take turns: one pattern, repeated for ever."""

    source_at: Ids
    """Source of each place of the pattern."""
    rank_at: Ids
    """How many places before it in the pattern are of the same source."""
    counts: Ids
    """Places of each source in the pattern."""

    def places(self, places: Ids) -> tuple[Ids, Ids]:
        """For each place of the blend its source, and the place in that source's own order."""
        periods, within = np.divmod(places, len(self.source_at))
        sources = self.source_at[within]
        return sources, periods * self.counts[sources] + self.rank_at[within]


def make_blend(weights: Sequence[float]) -> Blend:
    """The pattern in which sources of these weights take turns, as evenly spread as whole places allow.

    The rules of `pipeline.planning.data_rules` hold for the weights.
    """
    if len(weights) == 1:
        return Blend(source_at=np.zeros(1, np.int64), rank_at=np.zeros(1, np.int64), counts=np.ones(1, np.int64))
    counts = _largest_remainders(np.asarray(weights, dtype=np.float64))
    sources = np.repeat(np.arange(len(counts)), counts)
    ranks = np.concatenate([np.arange(count) for count in counts])
    # The n-th sample of a source is due in the middle of the n-th of its equal shares of the period.
    order = np.lexsort((sources, (ranks + 0.5) / counts[sources]))
    return Blend(source_at=sources[order], rank_at=ranks[order], counts=counts)


def _largest_remainders(weights: npt.NDArray[np.float64]) -> Ids:
    shares = weights / weights.sum() * BLEND_PERIOD
    counts: Ids = np.floor(shares).astype(np.int64)
    short = BLEND_PERIOD - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:short]] += 1
    return counts
