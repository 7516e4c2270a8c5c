"""calibrate: what it learns, what it refuses, and what plans make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.finished_runs import H200, finished_run, measured_runs

from pipeline.__main__ import main
from pipeline.calibration_files import read_calibration, shipped_calibration
from pipeline.types import RunState

ONE = [*H200, "recipe.micro_batch=1", "recipe.global_batch=8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    measured_runs(made)
    return made


def calibrated(root: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["calibrate", "--run-root", str(root), *words]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    assert main(["plan", *words, "--json"]) == 0
    throughput: dict[str, dict[str, str]] = json.loads(capsys.readouterr().out)["plan"]["throughput"]
    return throughput


def test_plans_name_the_version_and_come_closer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(calibrated(root, capsys, "-o", "ours", "--base", "none", "--json"))
    assert report["fit"]["runs"] == 3
    assert report["fit"]["left_out"] < min(0.03, report["fit"]["uncalibrated"])
    words = [*ONE, f"run_root={root}"]
    mine, none = (planned([*words, f"calibration={name}"], capsys) for name in ("ours", "none"))
    assert mine["calibration"] == report["version"]
    assert "model (dense/megatron-te/H200-SXM-141GB/bf16/llama3_2_1b)" in str(mine["level"])
    measured = 65536 / 51852
    errors = [abs(float(one["step_s"]["p50"]) / measured - 1) for one in (mine, none)]
    assert errors[0] < 0.03
    assert errors[0] < errors[1]


def test_the_version_says_what_is_in_it_and_old_ones_stay(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(calibrated(root, capsys, "-o", "two", "--json"))["version"]
    assert json.loads(calibrated(root, capsys, "-o", "two", "--json"))["version"] == first
    run = finished_run(root, ONE, 1.3)
    second = json.loads(calibrated(root, capsys, "-o", "two", "--json"))["version"]
    assert first != second
    assert planned([*ONE, f"run_root={root}", f"calibration={first}"], capsys)["calibration"] == first
    assert planned([*ONE, f"run_root={root}", "calibration=two"], capsys)["calibration"] == second
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    run.path.rmdir()


def test_what_the_runs_do_not_cover_stays_as_the_base_has_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(root, capsys, "-o", str(root / "mine.yaml"))
    mine, public = read_calibration(root / "mine.yaml"), shipped_calibration()
    differing = {key for key in mine.factors if mine.factors[key] != public.factors.get(key)}
    assert differing <= {key for key in mine.factors if "H200" in key}
    assert differing


@pytest.mark.parametrize(
    ("overrides", "step_s", "words", "why"),
    [
        (ONE, 1.27, {"steps": 8}, "5 steady steps, at least 20 are needed"),
        (ONE, 9.0, {}, "far off its prediction"),
        (["experiment=demo"], 0.1, {}, "its plan has no estimate of speed (hardware laptop"),
    ],
)
def test_a_run_that_teaches_nothing_is_named_with_the_reason(
    overrides: list[str],
    step_s: float,
    words: dict[str, int],
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = finished_run(tmp_path, overrides, step_s, **words)
    said = calibrated(tmp_path, capsys, "-o", "x", code=2)
    assert "too little to learn from: 0 of 1 runs" in said
    assert run.run_id in said
    assert why in said
    assert not (tmp_path / "calibrations").exists()


def test_no_correction_rests_on_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path, ONE, 1.27, state=RunState.timeout)
    said = calibrated(tmp_path, capsys, "-o", "x", code=2)
    assert "1 of 1 runs can be used, and no GPU and format has 2 of them" in said


def test_drifted_runs_are_learned_from_only_when_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        finished_run(tmp_path, ONE, 9.0)
    calibrated(tmp_path, capsys, "-o", "x", code=2)
    report = json.loads(calibrated(tmp_path, capsys, "-o", "x", "--keep-drifted", "--json"))
    assert report["fit"]["runs"] == 2


def test_a_damaged_run_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = measured_runs(tmp_path)
    runs[0].plan_file.write_text("{", encoding="utf-8")
    shown = calibrated(tmp_path, capsys, "-o", "x")
    assert "2 runs on dense/megatron-te/H200-SXM-141GB/bf16" in shown
    assert f"{runs[0].run_id}: {runs[0].plan_file}: can't be read" in shown


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["-o", "a/b"], "give letters, digits"),
        (["-o", "public"], "not public or none"),
        (["-o", "x", "--base", "missing"], "there are: public, none"),
    ],
)
def test_names_that_cannot_be(words: list[str], part: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert part in calibrated(root, capsys, *words, code=2)


def test_a_plan_names_the_calibrations_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *ONE, f"run_root={tmp_path}", "calibration=nosuch"]) == 2
    assert "`himori calibrate -o nosuch` makes one" in capsys.readouterr().err
