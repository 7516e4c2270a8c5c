"""Which samples a rank sees at a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_workers import plan_for, tiny_experiment

from pipeline.training.data import Batch, Sampler, sample_order

SEQUENCE_LENGTH = 8
TEXT = np.arange(250, dtype=np.uint8)


def sampler(*, dp: int = 1, cp: int = 1, dp_rank: int = 0, cp_rank: int = 0, seed: int = 1) -> Sampler:
    return Sampler(
        corpus=TEXT,
        samples=(len(TEXT) - 1) // SEQUENCE_LENGTH,
        sequence_length=SEQUENCE_LENGTH,
        seed=seed,
        layout=plan_for(tiny_experiment(), dp=dp, cp=cp).layout,
        dp_rank=dp_rank,
        cp_rank=cp_rank,
        device=torch.device("cpu"),
    )


def first_tokens(batches: list[Batch]) -> list[list[int]]:
    return [batch.tokens[:, 0].tolist() for batch in batches]


def test_labels_are_the_next_tokens() -> None:
    for batch in sampler().batches(1):
        assert batch.tokens.shape == (2, SEQUENCE_LENGTH)
        assert batch.tokens.dtype == batch.labels.dtype == batch.positions.dtype == torch.int64
        assert torch.equal(batch.labels, batch.tokens + 1)
        assert torch.equal(batch.positions, torch.arange(SEQUENCE_LENGTH).expand(2, -1))


def test_an_epoch_holds_every_sample_once_and_the_next_one_another_order() -> None:
    orders = [sample_order(np.arange(e * 31, (e + 1) * 31), samples=31, seed=5).tolist() for e in range(2)]
    assert [sorted(order) for order in orders] == [list(range(31))] * 2
    assert orders[0] != orders[1]
    assert orders[0] != list(range(31))


def test_places_across_epochs_are_those_of_each_epoch() -> None:
    whole = sample_order(np.arange(20), samples=3, seed=5)
    assert whole.tolist() == [int(sample_order(np.array([place]), samples=3, seed=5)[0]) for place in range(20)]


def test_a_step_depends_on_seed_and_step_alone() -> None:
    running = sampler()
    one_by_one = [first_tokens(list(running.batches(step))) for step in range(1, 30)]
    assert first_tokens(list(sampler().batches(29))) == one_by_one[-1]
    assert first_tokens(list(running.batches(3))) == one_by_one[2]


@pytest.mark.parametrize("seed", [2, -1, 2**32 + 1, 2**70])
def test_another_seed_is_another_order(seed: int) -> None:
    assert first_tokens(list(sampler(seed=seed).batches(1))) != first_tokens(list(sampler().batches(1)))


def test_the_order_is_the_same_with_every_release_of_numpy() -> None:
    assert sample_order(np.arange(8), samples=8, seed=1234).tolist() == [0, 2, 5, 3, 4, 7, 6, 1]


@pytest.mark.parametrize("dp", [2, 4])
def test_data_parallel_ranks_share_each_global_batch_in_megatrons_order(dp: int) -> None:
    whole = first_tokens(list(sampler().batches(2)))
    dealt = [first_tokens(list(sampler(dp=dp, dp_rank=rank).batches(2))) for rank in range(dp)]
    assert [batch for micro in zip(*dealt, strict=True) for batch in micro] == whole


def test_context_parallel_ranks_hold_two_chunks_of_each_sequence() -> None:
    whole = first_batch(sampler())
    parts = [first_batch(sampler(cp=2, cp_rank=rank)) for rank in range(2)]
    assert [part.positions[0].tolist() for part in parts] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    for part in parts:
        assert torch.equal(part.tokens, whole.tokens.gather(1, part.positions))
        assert torch.equal(part.labels, whole.labels.gather(1, part.positions))


def first_batch(of: Sampler) -> Batch:
    return next(of.batches(1))
