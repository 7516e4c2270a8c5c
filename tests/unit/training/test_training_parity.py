"""Workers, started as a node starts them, train alike however their ranks are laid out: fp32, same seed, same data.

What layouts there are is compared in test_training_layouts; here the data are real too, and dealt out over ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from training_workers import Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

STEPS = 5
LAYOUTS = {"cp2": {"cp": 2}, "tp2-dp2": {"tp": 2, "dp": 2}}


def train(folder: Path, **layout: int) -> Ended:
    experiment = tiny_experiment(steps=STEPS)
    plan = plan_for(experiment, **layout)
    ended = run_workers(write_run(folder, experiment, plan), ranks=plan.layout.ranks)
    assert [rank.exit_code for rank in ended] == [0] * plan.layout.ranks, "\n".join(rank.errors for rank in ended)
    return ended[0]


@pytest.fixture(scope="module")
def single_rank(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout_trains_like_a_single_rank(layout: dict[str, int], single_rank: Ended, tmp_path: Path) -> None:
    assert parity_gaps(train(tmp_path, **layout), single_rank) == []


def test_the_loss_falls(single_rank: Ended) -> None:
    losses = single_rank.metric("train/loss")
    assert losses[-1] < losses[0] - 0.1


def test_rank_zero_reports_every_step_and_each_phase(single_rank: Ended) -> None:
    names = [event["name"] for event in single_rank.of_kind("phase")]
    assert names == ["imports", "process_group", "model", "data", "checkpoint", "first_step"]
    assert [event["step"] for event in single_rank.of_kind("metrics")] == list(range(1, STEPS + 1))
    values = single_rank.of_kind("metrics")[-1]["values"]
    assert values["train/consumed_tokens"] == STEPS * 8 * 32
    assert values["throughput/tokens_per_s"] == pytest.approx(8 * 32 / values["throughput/step_time_s"])
    assert 0.05 < values["memory/rss_max_gib"] < 4
    (environment,) = single_rank.of_kind("environment")
    assert environment["device"] == "cpu"
    assert set(environment) >= {"python", "torch", "megatron_core"}
