"""Identity of what was trained: what two runs must share to be the same."""

from __future__ import annotations

import pytest

from pipeline.config import load
from pipeline.identity import configuration_digest
from pipeline.rundir import to_jsonable

BASE = ["hardware=dgx_h200", "model=llama3_8b", "precision=bf16"]


def hashed(*words: str) -> str:
    return configuration_digest(to_jsonable(load([*BASE, *words]).experiment))


@pytest.mark.parametrize(
    "words",
    [
        ["name=other"],
        ["run_root=elsewhere"],
        ["cluster.time_limit_min=7"],
        ["calibration=none"],
        ["tracking.experiment=x"],
        ["hardware.description=x"],
    ],
    ids=str,
)
def test_where_it_runs_and_what_it_is_called_do_not_count(words: list[str]) -> None:
    assert hashed(*words) == hashed()


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1"],
        ["optimizer.lr=1e-5"],
        ["recipe.micro_batch=2"],
        ["techniques.recompute=full"],
        ["layout.tp=2"],
        ["hardware=dgx_b200"],
        ["model.num_layers=31"],
        ["precision=fp8"],
        ["nodes=2"],
    ],
    ids=str,
)
def test_what_is_trained_counts(words: list[str]) -> None:
    assert hashed(*words) != hashed()
