"""However a model is divided over ranks, it trains as on one: same seed, same order of data, real ranks over gloo."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from layout_cases import CASES, SP, STEPS, Case, Trainers

LOSS_TOLERANCE = 2e-6
"""Relative; the largest gap measured between any fp32 case below and one rank was 3e-7."""
NORM_TOLERANCE = 3e-6
"""Relative; the largest gap measured was 5e-7."""
BF16_TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    process = Trainers(tmp_path_factory.mktemp("layouts"))
    yield process
    process.close()


def gaps(found: dict[str, Any], wanted: dict[str, Any], *, loss: float, norm: float) -> list[str]:
    """Steps whose loss or gradient norm differs by more than these relative tolerances."""
    assert len(found["losses"]) == len(wanted["losses"]) == STEPS
    return [
        f"step {step}: {what} {mine!r}, one rank has {theirs!r}"
        for what, tolerance in (("losses", loss), ("norms", norm))
        for step, (mine, theirs) in enumerate(zip(found[what], wanted[what], strict=True), start=1)
        if not math.isclose(mine, theirs, rel_tol=tolerance)
    ]


def in_bf16(case: Case) -> bool:
    return "precision.dtype" in case.keys


@pytest.mark.parametrize("name", CASES)
def test_a_layout_trains_as_one_rank_does(name: str, trainers: Trainers) -> None:
    case = CASES[name]
    found, wanted = trainers.train(case.experiment(), case.layout), trainers.single(case)
    assert (found["errors"], wanted["errors"]) == ("", "")
    loss, norm = (BF16_TOLERANCE, BF16_TOLERANCE) if in_bf16(case) else (LOSS_TOLERANCE, NORM_TOLERANCE)
    assert gaps(found, wanted, loss=loss, norm=norm) == []


@pytest.mark.parametrize(
    ("fault", "layout"),
    [
        ("keep_partial_sums", {"tp": 2}),
        ("keep_own_gradients", {"dp": 2}),
        ("take_first_positions", {"cp": 2}),
    ],
)
def test_a_fault_on_purpose_is_noticed(fault: str, layout: dict[str, Any], trainers: Trainers) -> None:
    case = Case(layout=layout, keys={"optimizer.distributed": False})
    found = trainers.train(case.experiment(), layout, fault=fault)
    assert found["errors"] == ""
    assert gaps(found, trainers.single(Case()), loss=LOSS_TOLERANCE, norm=NORM_TOLERANCE) != []


@pytest.mark.parametrize(
    ("model", "layout", "keys"),
    [
        ("experts", {"tp": 2, "etp": 1, **SP}, {}),
        ("latent", {"tp": 2}, {}),
    ],
)
def test_what_plans_refuse_is_what_megatron_gets_wrong(
    model: str, layout: dict[str, Any], keys: dict[str, object], trainers: Trainers
) -> None:
    case = Case(model=model, layout=layout, keys=keys)
    found = trainers.train(case.experiment(), layout)
    assert found["errors"] == ""
    assert gaps(found, trainers.single(Case(model=model)), loss=LOSS_TOLERANCE, norm=NORM_TOLERANCE) != []
