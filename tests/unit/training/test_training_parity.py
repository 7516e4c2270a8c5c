"""However a run is laid out over ranks, it trains the same: fp32, same seed, same order of data."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_workers import Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

from pipeline.types import Normalization

STEPS = 5

LAYOUTS = {
    "tp2": {"tp": 2},
    "tp2-sequence-parallel": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2},
    "cp2": {"cp": 2},
    "tp2-dp2": {"tp": 2, "dp": 2},
}


def train(folder: Path, *, distributed: bool = True, tied: bool = False, ornate: bool = False, **layout: int) -> Ended:
    experiment = tiny_experiment(steps=STEPS)
    experiment.optimizer.distributed = distributed
    model = experiment.model
    model.tied_embeddings = tied
    if ornate:
        model.qk_norm = model.linear_bias = True
        model.normalization = Normalization.layernorm
    plan = plan_for(experiment, **layout)
    ended = run_workers(write_run(folder, experiment, plan), ranks=plan.layout.ranks)
    assert [rank.exit_code for rank in ended] == [0] * plan.layout.ranks, "\n".join(rank.errors for rank in ended)
    return ended[0]


@pytest.fixture(scope="module")
def single_rank(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def single_rank_tied(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("single-tied"), tied=True)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout_trains_like_a_single_rank(layout: dict[str, int], single_rank: Ended, tmp_path: Path) -> None:
    assert parity_gaps(train(tmp_path, **layout), single_rank) == []


def test_replicated_optimizer_trains_like_a_sharded_one(single_rank: Ended, tmp_path: Path) -> None:
    assert parity_gaps(train(tmp_path, dp=2, distributed=False), single_rank) == []


def test_tied_embeddings_stay_tied_across_stages(single_rank_tied: Ended, tmp_path: Path) -> None:
    assert parity_gaps(train(tmp_path, pp=2, tied=True), single_rank_tied) == []


def test_norms_and_biases_of_every_kind_train_alike_with_sequence_parallelism(tmp_path: Path) -> None:
    single = train(tmp_path / "single", ornate=True)
    assert parity_gaps(train(tmp_path / "tp2", ornate=True, tp=2, sequence_parallel=True), single) == []


def test_the_loss_falls(single_rank: Ended) -> None:
    losses = single_rank.metric("train/loss")
    assert losses[-1] < losses[0] - 0.1


def test_rank_zero_reports_every_step_and_each_phase(single_rank: Ended) -> None:
    names = [event["name"] for event in single_rank.of_kind("phase")]
    assert names == ["imports", "process_group", "model", "data", "first_step"]
    assert [event["step"] for event in single_rank.of_kind("metrics")] == list(range(1, STEPS + 1))
    values = single_rank.of_kind("metrics")[-1]["values"]
    assert values["train/consumed_tokens"] == STEPS * 8 * 32
    assert values["throughput/tokens_per_s"] == pytest.approx(8 * 32 / values["throughput/step_time_s"])
    assert 0.05 < values["memory/rss_max_gib"] < 4
    (environment,) = single_rank.of_kind("environment")
    assert environment["device"] == "cpu"
    assert set(environment) >= {"python", "torch", "megatron_core"}
