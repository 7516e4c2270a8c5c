"""Fitting corrections, leaving groups out, intervals, and refining an older calibration."""

from __future__ import annotations

import math

import pytest
from planning_runs import many, seen

from pipeline.calibration_files import shipped_calibration
from pipeline.planning.calibration import group_keys
from pipeline.planning.fitting import fit, left_out_error


def test_corrections_are_shrunk_towards_the_wider_group() -> None:
    calibration = fit([seen(0.2), seen(0.2), *[seen(0.0, gpu="B200")] * 2], "test")
    _, whole, hopper, _ = (calibration.factors[key] for key in group_keys("dense", "megatron-te", "H100", "bf16", "m"))
    blackwell = calibration.factors["dense/megatron-te/B200/bf16"]
    assert blackwell < whole < hopper < 0.2


def test_one_run_never_sets_a_correction() -> None:
    runs = [*[seen(0.1, model=str(index % 3)) for index in range(9)], seen(0.9, gpu="B200")]
    assert not [key for key in fit(runs, "test").factors if "B200" in key]


def test_repeats_weigh_less_than_as_many_configurations() -> None:
    repeats = [seen(0.5, weight=1 / math.sqrt(4)) for _ in range(4)]
    others = [seen(0.0, model=str(index)) for index in range(4)]
    assert fit([*repeats, *others], "test").factors["dense/megatron-te/H100/bf16"] < 0.1


def test_a_machine_with_many_runs_does_not_speak_for_all() -> None:
    runs = [*[seen(0.3) for _ in range(40)], *[seen(0.0, gpu=gpu) for gpu in ("A", "B") for _ in range(2)]]
    assert fit(runs, "test").factors["dense/megatron-te"] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("gpu", ["A", "B", "C"])
def test_leaving_a_gpu_out_is_the_same_as_fitting_without_it(gpu: str) -> None:
    runs = many()
    left, rest = [one for one in runs if one.gpu == gpu], fit([one for one in runs if one.gpu != gpu], "rest")
    half = fit(runs, "all").spread("dense", "megatron-te", 1).high
    errors = [one.log_ratio - rest.factors["dense/megatron-te"] for one in left]
    assert sum(error**2 for error in errors) / len(errors) < 3 * (half / 1.2816) ** 2


def test_a_gpu_that_nobody_measured_is_covered_as_promised() -> None:
    inside = total = 0
    for seed in range(60):
        runs = many(120, seed, gpus="ABCDEF")
        rest = fit([one for one in runs if one.gpu != "F"], "rest")
        spread = rest.spread("dense", "megatron-te", 1)
        errors = [one.log_ratio - rest.factors["dense/megatron-te"] for one in runs if one.gpu == "F"]
        inside += sum(spread.low <= error <= spread.high for error in errors)
        total += len(errors)
    assert 0.72 < inside / total < 0.92


def test_intervals_cover_what_they_promise() -> None:
    inside = total = 0
    for seed in range(20):
        runs = many(80, seed)
        calibration = fit(runs[:60], "test")
        for one in runs[60:]:
            spread = calibration.spread("dense", "megatron-te", 3)
            error = one.log_ratio - calibration.factors[one.groups()[3]]
            inside, total = inside + (spread.low <= error <= spread.high), total + 1
    assert 0.72 < inside / total < 0.93


def test_a_wider_group_never_promises_more() -> None:
    spreads = fit(many(), "test").spreads
    widths = [
        spreads[f"dense/megatron-te/{level}"].high - spreads[f"dense/megatron-te/{level}"].low for level in range(4)
    ]
    assert widths == sorted(widths, reverse=True)


def test_groups_of_fewer_runs_than_asked_for_fall_back_to_the_wider_one() -> None:
    runs = [*[seen(0.1) for _ in range(5)], seen(0.9, gpu="B200")]
    assert "dense/megatron-te/B200/bf16" in fit(runs, "test", fewest=1).factors
    assert "dense/megatron-te/B200/bf16" not in fit(runs, "test").factors


def test_a_slow_old_release_does_not_move_a_group() -> None:
    runs = [seen(0.1 + index / 100) for index in range(7)]
    before, after = (fit(some, "test").factors["dense/megatron-te/H100/bf16"] for some in (runs, [*runs, seen(2.0)]))
    assert abs(after - before) < 0.05


def test_own_runs_refine_a_base_where_they_are_and_leave_the_rest_alone() -> None:
    base = shipped_calibration()
    own = fit([seen(0.3, gpu="H200-SXM-141GB", model="llama3_8b") for _ in range(6)], "own", base=base)
    changed = {key for key in own.factors if own.factors[key] != base.factors.get(key)}
    assert changed == {"dense/megatron-te/H200-SXM-141GB/bf16", "dense/megatron-te/H200-SXM-141GB/bf16/llama3_8b"}
    assert own.factors["dense/megatron-te/H200-SXM-141GB/bf16/llama3_8b"] == pytest.approx(0.3, abs=0.02)
    assert own.spreads == base.spreads


def test_a_gpu_that_the_base_does_not_know_starts_from_its_software() -> None:
    own = fit([seen(0.3, gpu="new") for _ in range(2)], "own", base=shipped_calibration())
    assert shipped_calibration().factors["dense/megatron-te"] < own.factors["dense/megatron-te/new/bf16"] < 0.3


def test_each_run_is_predicted_without_itself() -> None:
    runs = [seen(0.1), seen(0.1), seen(0.1), seen(0.9)]
    errors = left_out_error(runs)
    assert errors[3] == pytest.approx(0.8, abs=0.05)
    alone = left_out_error([seen(0.4)])
    assert alone == [0.4]
