"""Corrections in estimates, and the file they are kept in."""

from __future__ import annotations

import math

import pytest
from planning_jobs import job, shape
from planning_runs import many, seen

from pipeline.calibration_files import read_calibration, shipped_calibration, write_calibration
from pipeline.errors import ConfigError
from pipeline.planning.calibration import UNCALIBRATED, from_document, to_document
from pipeline.planning.fitting import fit
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
