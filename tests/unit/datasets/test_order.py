"""The endless order of samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets.order import make_blend, shuffled


@given(size=st.integers(1, 700), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 5))
def test_every_epoch_holds_every_sample_once(size: int, seed: int, epoch: int) -> None:
    order = shuffled(np.arange(epoch * size, (epoch + 1) * size), size=size, seed=seed)
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(1, 1 << 45), seed=st.integers(0, 2**64), place=st.integers(0, 1 << 50))
def test_a_place_is_found_alone_as_among_others(size: int, seed: int, place: int) -> None:
    places = np.arange(place, place + 4)
    among = shuffled(places, size=size, seed=seed)
    assert among.tolist() == [int(shuffled(places[i : i + 1], size=size, seed=seed)[0]) for i in range(4)]
    assert among.min() >= 0
    assert among.max() < size


def test_epochs_and_seeds_differ() -> None:
    orders = [shuffled(np.arange(e * 31, (e + 1) * 31), size=31, seed=s).tolist() for e in range(4) for s in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    assert list(range(31)) not in orders


def test_the_order_is_the_same_for_good() -> None:
    assert shuffled(np.arange(8), size=8, seed=1234).tolist() == EIGHT
    assert shuffled(np.arange(3), size=10**12, seed=7).tolist() == HUGE


EIGHT = [7, 5, 3, 4, 6, 0, 1, 2]
HUGE = [781930447402, 381903243142, 560510396321]


def test_neighbours_are_spread_evenly() -> None:
    size = 10_000
    order = shuffled(np.arange(size), size=size, seed=3)
    # Where the first tenth of the order comes from: about a hundredth of all from each hundredth of the samples.
    counts = np.bincount(order[: size // 10] * 10 // size, minlength=10)
    assert 60 < counts.min() <= counts.max() < 140
    steps = np.abs(np.diff(order))
    assert 0.9 < steps.mean() / (size / 3) < 1.1


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6), st.integers(0, 200_000))
def test_a_blend_keeps_to_its_weights_from_the_start(weights: list[float], upto: int) -> None:
    sources, within = make_blend(weights).places(np.arange(upto + 1))
    shares = np.array(weights) / sum(weights)
    counts = np.bincount(sources, minlength=len(weights))
    # Off by rounding to whole places (of 65536), and by about one sample for each source.
    assert np.all(np.abs(counts - shares * (upto + 1)) <= len(weights) + (upto + 1) / 65536)
    for source in range(len(weights)):
        mine = within[sources == source]
        assert mine.tolist() == list(range(len(mine)))


def test_a_single_source_is_itself() -> None:
    sources, within = make_blend([0.2]).places(np.arange(5))
    assert (sources.tolist(), within.tolist()) == ([0] * 5, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("far", [0, 10**9, 10**15])
def test_a_blend_goes_on_for_ever(far: int) -> None:
    blend = make_blend([3, 1])
    sources, within = blend.places(np.arange(far, far + 100_000))
    for source in (0, 1):
        assert np.all(np.diff(within[sources == source]) == 1)
