"""Predicted against measured, and learning from it."""

from __future__ import annotations

import math

import pytest

from pipeline.config import load
from pipeline.planning.fitting import fit
from pipeline.planning.outcome import observation, outcome_text, outcomes
from pipeline.planning.plan import make_plan

WORDS = ["hardware=dgx_h200", "model=llama3_8b", "precision=bf16", "recipe.global_batch=64", "recipe.micro_batch=1"]
EXPERIMENT = load(WORDS).experiment
PLAN = make_plan(EXPERIMENT)


def test_measured_stands_beside_predicted() -> None:
    assert PLAN.throughput is not None
    assert PLAN.memory is not None
    step, rate, memory = outcomes(
        PLAN, step_s=1.05 * PLAN.throughput.step_s.p50, peak_gib=PLAN.memory.worst.allocated_gib
    )
    assert step.error == pytest.approx(1 / 1.05 - 1)
    assert step.inside
    assert not step.drifted
    assert rate.error == pytest.approx(1.05 - 1)
    assert rate.inside
    assert memory.error == 0
    assert memory.inside
    assert "measured" in outcome_text(step)
    assert "inside" in outcome_text(step)


def test_what_is_far_off_is_flagged() -> None:
    assert PLAN.throughput is not None
    step, _ = outcomes(PLAN, step_s=3 * PLAN.throughput.step_s.p50)
    assert not step.inside
    assert step.drifted
    assert "throttling" in outcome_text(step)


def test_nothing_measured_says_nothing() -> None:
    assert outcomes(PLAN) == ()
    assert outcomes(make_plan(load(["experiment=demo"]).experiment), step_s=1.0, peak_gib=1.0) == ()


def test_a_calibration_learns_from_runs() -> None:
    assert PLAN.throughput is not None
    slow = 1.2 * PLAN.throughput.step_s.p50
    learned = fit([observation(EXPERIMENT, PLAN, step_s=slow) for _ in range(10)], "mine")
    again = make_plan(EXPERIMENT, learned)
    assert again.throughput is not None
    assert again.throughput.step_s.p50 == pytest.approx(slow, rel=0.03)
    assert math.isclose(again.throughput.step.total_s, again.throughput.step_s.p50)
    assert again.throughput.calibration == "mine"
