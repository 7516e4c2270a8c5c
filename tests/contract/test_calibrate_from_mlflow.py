"""Runs whose directories are gone are learned from through MLflow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.finished_runs import measured_runs

from pipeline.__main__ import main
from pipeline.rundir import RunDir


def sync(run: RunDir) -> None:
    subprocess.run([sys.executable, "-P", "-m", "pipeline.tracking.sync", str(run.path)], check=True)


def test_mlflow_gives_the_same_calibration_as_the_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = measured_runs(tmp_path)
    for run in runs:
        sync(run)
    words = ["calibrate", "-o", "ours", "--json", "--run-root", str(tmp_path)]
    assert main(words) == 0
    from_directories = json.loads(capsys.readouterr().out)
    for run in runs:
        shutil.rmtree(run.path)
    assert main([*words, "--mlflow", f"sqlite:///{tmp_path}/mlflow.db"]) == 0
    from_mlflow = json.loads(capsys.readouterr().out)
    assert from_mlflow["version"] == from_directories["version"]
    assert {one["run_id"] for one in from_mlflow["runs"]} == {run.run_id for run in runs}


def test_a_store_that_is_not_there_is_said_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    uri = f"sqlite:///{tmp_path}/none.db"
    assert main(["calibrate", "-o", "x", "--run-root", str(tmp_path), "--mlflow", uri]) == 3
    said = capfd.readouterr().err
    assert "there is no such database" in said
    assert "no runs could be read" in said
    assert not (tmp_path / "none.db").exists()
