"""Fitting corrections, leaving groups out, intervals, and the file."""

from __future__ import annotations

import math
import random

import pytest
from planning_jobs import job, shape

from pipeline.calibration_files import read_calibration, shipped_calibration, write_calibration
from pipeline.errors import ConfigError
from pipeline.planning.calibration import (
    UNCALIBRATED,
    Observation,
    fit,
    from_document,
    group_keys,
    left_out_errors,
    to_document,
)
from pipeline.planning.throughput import estimate_throughput

LLAMA8 = shape(
    "llama3_8b",
    {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "vocab_size": 128256,
    },
)


def seen(
    ratio: float, *, gpu: str = "H100", model: str = "m", stack: str = "megatron-te", weight: float = 1
) -> Observation:
    return Observation(kind="dense", stack=stack, gpu=gpu, rate="bf16", model=model, log_ratio=ratio, weight=weight)


def many(count: int = 60, seed: int = 1) -> list[Observation]:
    """Runs whose GPUs and models have their own factors, and noise."""
    draw = random.Random(seed)
    gpus = {name: draw.gauss(0.1, 0.1) for name in ("A", "B", "C")}
    models = {name: draw.gauss(0, 0.03) for name in "abcd"}
    return [
        seen(gpus[gpu] + models[model] + draw.gauss(0, 0.03), gpu=gpu, model=model)
        for gpu, model in zip(
            random.Random(2).choices("ABC", k=count), random.Random(3).choices("abcd", k=count), strict=True
        )
    ]


def test_corrections_are_shrunk_towards_the_wider_group() -> None:
    calibration = fit([seen(0.2), seen(0.2), seen(0.0, gpu="B200")], "test")
    whole, _, hopper, _ = (calibration.factors[key] for key in group_keys("dense", "megatron-te", "H100", "bf16", "m"))
    blackwell = calibration.factors["dense/megatron-te/B200/bf16"]
    assert blackwell < whole < hopper < 0.2


def test_one_run_never_sets_a_correction_alone() -> None:
    calibration = fit([*[seen(0.1, model=str(index)) for index in range(9)], seen(0.9, gpu="B200")], "test")
    assert calibration.factors["dense/megatron-te/B200/bf16"] < 0.9


def test_repeats_weigh_less_than_as_many_configurations() -> None:
    repeats = [seen(0.5, weight=1 / math.sqrt(4)) for _ in range(4)]
    others = [seen(0.0, model=str(index)) for index in range(4)]
    assert fit([*repeats, *others], "test").factors["dense"] < 0.1


def test_leaving_a_group_out_is_the_same_as_fitting_without_it() -> None:
    runs = many()
    errors = dict((id(one), error) for one, error in left_out_errors(runs, 1))
    rest = fit([one for one in runs if one.gpu != "B"], "rest")
    for one in runs:
        if one.gpu == "B":
            assert errors[id(one)] == pytest.approx(one.log_ratio - rest.factors["dense/megatron-te"])


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


def test_an_estimate_names_version_and_level() -> None:
    one = job(LLAMA8, tp=2, dp=4, batch=64, seq=8192)
    calibration = fit([seen(0.1, gpu=one.gpu.name, model="llama3_8b") for _ in range(9)], "mine")
    found = estimate_throughput(one, calibration=calibration)
    plain = estimate_throughput(one)
    assert found.calibration == "mine"
    assert "model (dense/megatron-te/H100-SXM5-80GB/bf16/llama3_8b)" in found.level
    assert found.step_s.p50 / plain.step_s.p50 == pytest.approx(math.exp(0.1), rel=0.01)
    assert found.step_s.p90 / found.step_s.p10 < plain.step_s.p90 / plain.step_s.p10
    assert plain.calibration == UNCALIBRATED.version
    assert found.tokens_per_s.p10 == pytest.approx(64 * 8192 / found.step_s.p90)


def test_the_file_keeps_everything(tmp_path) -> None:  # type: ignore[no-untyped-def]
    calibration = fit(many(), "mine")
    write_calibration(tmp_path / "c.yaml", calibration, "a comment\nof two lines")
    again = read_calibration(tmp_path / "c.yaml")
    assert to_document(again) == to_document(calibration) == to_document(from_document(to_document(calibration)))  # type: ignore[arg-type]


def test_a_broken_file_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "c.yaml"
    file.write_text("groups: 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.yaml: not a calibration"):
        read_calibration(file)


def test_the_shipped_one_knows_the_public_groups() -> None:
    calibration = shipped_calibration()
    assert {"dense/megatron-te/H100-SXM5-80GB/bf16", "moe/megatron-te/GB200/mxfp8"} <= set(calibration.factors)
    assert all(abs(factor) < 1 for factor in calibration.factors.values())


def test_groups_of_fewer_runs_than_asked_for_fall_back_to_the_wider_one() -> None:
    runs = [*[seen(0.1) for _ in range(5)], seen(0.9, gpu="B200")]
    assert "dense/megatron-te/B200/bf16" in fit(runs, "test").factors
    assert "dense/megatron-te/B200/bf16" not in fit(runs, "test", fewest=2).factors


def test_a_slow_old_release_does_not_move_a_group() -> None:
    runs = [seen(0.1 + index / 100) for index in range(7)]
    before, after = (fit(some, "test").factors["dense"] for some in (runs, [*runs, seen(2.0)]))
    assert abs(after - before) < 0.05
