"""Which samples a rank sees at a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_workers import plan_for, tiny_experiment

from pipeline.datasets.order import make_blend
from pipeline.datasets.samples import TokenStream
from pipeline.errors import DataError
from pipeline.training.data import Batch, DataState, Sampler, positions_of

SEQUENCE_LENGTH = 8
TEXT = np.arange(250, dtype=np.uint8)


def stream(text: np.ndarray = TEXT, starts: tuple[int, ...] = (0,)) -> TokenStream:
    return TokenStream(
        name="text",
        tokens=text,
        starts=np.array(starts, dtype=np.int64),
        length=SEQUENCE_LENGTH,
        vocab_size=256,
        digest=text.tobytes()[:4],
    )


def sampler(
    *sources: TokenStream,
    weights: tuple[float, ...] = (1.0,),
    dp: int = 1,
    cp: int = 1,
    dp_rank: int = 0,
    cp_rank: int = 0,
    seed: int = 1,
) -> Sampler:
    return Sampler(
        sources=sources or (stream(),),
        blend=make_blend(weights),
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
        assert batch.targets is batch.documents is None


def test_a_step_depends_on_seed_and_step_alone() -> None:
    running = sampler()
    one_by_one = [first_tokens(list(running.batches(step))) for step in range(1, 30)]
    assert first_tokens(list(sampler().batches(29))) == one_by_one[-1]
    assert first_tokens(list(running.batches(3))) == one_by_one[2]


@pytest.mark.parametrize("seed", [2, -1, 2**32 + 1, 2**70])
def test_another_seed_is_another_order(seed: int) -> None:
    assert first_tokens(list(sampler(seed=seed).batches(1))) != first_tokens(list(sampler().batches(1)))


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


@pytest.mark.parametrize("stopped", [1, 5, 40])
def test_a_resumed_run_goes_on_with_the_next_sample_under_any_layout(stopped: int) -> None:
    sources = (stream(), stream(TEXT[::-1].copy()))
    whole = sampler(*sources, weights=(0.3, 0.7))
    state = whole.state(stopped)
    assert state.consumed_samples == stopped * 8
    for dp in (1, 2):
        parts = [
            sampler(*sources, weights=(0.3, 0.7), dp=dp, dp_rank=rank).resumed(state, steps=stopped)
            for rank in range(dp)
        ]
        for step in (stopped + 1, stopped + 7):
            dealt = [first_tokens(list(part.batches(step))) for part in parts]
            assert [batch for micro in zip(*dealt, strict=True) for batch in micro] == first_tokens(
                list(whole.batches(step))
            )
            assert all(part.state(step) == whole.state(step) for part in parts)


def test_a_larger_global_batch_goes_on_with_the_next_sample_too() -> None:
    narrow = sampler()
    layout = replace(narrow.layout, global_batch=16, num_microbatches=8)
    wide = replace(narrow, layout=layout).resumed(narrow.state(3), steps=3)
    following = [row for step in (4, 5) for row in first_tokens(list(narrow.batches(step)))]
    assert first_tokens(list(wide.batches(4))) == following


@pytest.mark.parametrize("other", [{"seed": 2}, {"weights": (1.0, 2.0)}])
def test_other_data_than_the_checkpoints_is_refused(other: dict[str, object]) -> None:
    kept = sampler(stream(), stream(), weights=(1.0, 1.0)).state(3)
    options = {"weights": (1.0, 1.0), **other}
    with pytest.raises(DataError, match="the checkpoint was trained on"):
        sampler(stream(), stream(), **options).resumed(kept, steps=3)  # type: ignore[arg-type]
    assert isinstance(kept, DataState)


def test_sources_of_equal_size_are_walked_in_different_orders() -> None:
    both = sampler(stream(), stream(), weights=(1.0, 1.0))
    rows = [row for step in range(1, 4) for batch in first_tokens(list(both.batches(step))) for row in batch]
    assert rows[::2] != rows[1::2]


def test_positions_and_documents_start_anew_where_asked() -> None:
    pieces = stream(starts=tuple(range(0, 250, 5)))
    plain = first_batch(sampler(pieces))
    apart = first_batch(replace(sampler(pieces), reset_positions=True, reset_attention=True))
    assert torch.equal(plain.tokens, apart.tokens)
    assert plain.documents is None
    assert apart.documents is not None
    for row in range(2):
        assert apart.documents[row].tolist() == [token // 5 for token in apart.tokens[row].tolist()]
        begin = int(apart.tokens[row, 0])
        wanted = [token % 5 if token // 5 != begin // 5 else token - begin for token in apart.tokens[row].tolist()]
        assert apart.positions[row].tolist() == wanted


def test_positions_of_documents_of_any_length() -> None:
    documents = np.array([[3, 3, 4, 5, 5, 5], [0, 0, 0, 0, 0, 0]])
    assert positions_of(documents, reset=True).tolist() == [[0, 1, 0, 0, 1, 2], [0, 1, 2, 3, 4, 5]]


def first_batch(of: Sampler) -> Batch:
    return next(of.batches(1))
