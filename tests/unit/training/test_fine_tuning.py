"""Conversations with packing and masks, and adapters: any layout trains alike, and only what should be trained is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import data_probe
import lora_probe
import pytest
from training_workers import Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

from pipeline.types import DataKind, Experiment, LoraSpec

STEPS = 4

LAYOUTS = {
    "tp2": {"tp": 2},
    "tp2-sequence-parallel": {"tp": 2, "sequence_parallel": True},
    "pp2-dp2": {"pp": 2, "dp": 2},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    data_probe.write_files(folder)
    return folder


def tuning(files: Path) -> Experiment:
    """Adapters trained on conversations that don't see each other."""
    experiment = tiny_experiment(steps=STEPS)
    experiment.recipe.lora = LoraSpec(rank=4, alpha=8.0)
    data = experiment.data
    data.kind, data.path, data.tokenizer = DataKind.chat, str(files / "chat.jsonl"), str(files / "bytes")
    data.reset_attention = True
    data.validation_fraction, experiment.recipe.eval_every = 0.3, 2
    experiment.optimizer.lr = 2e-2
    return experiment


def train(files: Path, place: Path, **layout: Any) -> Ended:
    experiment = tuning(files)
    plan = plan_for(experiment, **layout)
    ended = run_workers(write_run(place, experiment, plan), ranks=plan.layout.ranks)
    assert [rank.exit_code for rank in ended] == [0] * plan.layout.ranks, "\n".join(rank.errors for rank in ended)
    return ended[0]


@pytest.fixture(scope="module")
def single_rank(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(files, tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_tunes_like_a_single_rank(
    files: Path, tmp_path: Path, single_rank: Ended, layout: dict[str, Any]
) -> None:
    ended = train(files, tmp_path, **layout)
    assert parity_gaps(ended, single_rank) == []
    assert ended.metric("validation/loss") == pytest.approx(single_rank.metric("validation/loss"), rel=1e-6)


def test_adapters_learn_the_answers(single_rank: Ended) -> None:
    losses, held_out = single_rank.metric("train/loss"), single_rank.metric("validation/loss")
    assert losses[-1] < losses[0] - 0.1
    assert len(held_out) == STEPS // 2
    assert held_out[-1] < held_out[0]


def test_what_was_read_is_on_record(single_rank: Ended, files: Path) -> None:
    (told,) = single_rank.of_kind("data")
    (source,) = told["train"]
    assert source["source"] == str(files / "chat.jsonl")
    assert source["epochs"] == pytest.approx(STEPS * 8 / source["samples"])
    assert told["held_out"][0]["samples"] > 0


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(lora_probe.__file__)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_only_adapters_are_trained(probed: dict[str, Any]) -> None:
    assert probed["trained"]
    assert all(".lora." in name for name in probed["trained"])
    assert {name.split(".")[-3] for name in probed["trained"]} == {
        "linear_qkv",
        "linear_proj",
        "linear_fc1",
        "linear_fc2",
    }
    assert probed["moved"] == sorted(probed["trained"])


def test_new_adapters_change_nothing_and_merged_ones_nothing_more(probed: dict[str, Any]) -> None:
    assert probed["new_adapters_add"] == 0.0
    assert probed["trained_adapters_add"] > 0.1
    assert probed["merged_differs_by"] < 1e-5


def test_full_recompute_does_not_stop_them_learning(probed: dict[str, Any]) -> None:
    assert probed["recomputed_differs_by"] < 1e-6


def test_targets_and_rank_choose_what_is_added(probed: dict[str, Any]) -> None:
    assert probed["narrow"] == {"decoder.layers.0.self_attention.linear_qkv.lora.a": [2, 32], "rank": 2, "linears": 2}
