"""The command line: what it imports, how it fails, and that it touches nothing it should not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import HIMORI

HEAVY = {"torch", "mlflow", "megatron", "transformer_engine", "pandas", "matplotlib"}


def himori(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Calls himori in an empty folder."""
    return subprocess.run([*HIMORI, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [["plan", "--help"], ["plan", "experiment=demo"], ["status"], ["--version"]])
def test_planning_and_asking_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pipeline.__main__ import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        "print('\\nMODULES', *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.rsplit("MODULES", 1)[1].split())
    assert not modules & HEAVY


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["plan", "model=tinny"], 2, "did you mean tiny"),
        (["plan", "layout.tp=3"], 7, "layout:"),
        (["plan", "cluster=slurm", "cluster.sbatch.hold=x"], 2, "cluster.sbatch.hold"),
        (["plan", "tracking.uri=http://me:secret@host"], 2, "MLFLOW_TRACKING_PASSWORD"),
        (["plan", "run_root='a%b'"], 2, "run_root"),
        (["submit", "experiment=demo"], 2, "cluster=local"),
        (
            ["submit", "cluster=slurm", "hardware=dgx_h100", "precision.dtype=fp16", "recipe.global_batch=128"],
            7,
            "precision.dtype=fp16",
        ),
        (["plan", "--search", "experiment=demo"], 7, "GPU profile"),
        (["plan", "name=''"], 2, "name:"),
        (["run", "experiment=demo", "nodes=2", "ranks=null"], 2, "can't run on this machine"),
        (["run", "experiment=demo", "data.path=nope"], 2, "data.path"),
        (["status", "nope"], 2, "no run 'nope'"),
        (["logs", "last"], 2, "no run 'last'"),
        (["cancel", "nope"], 2, "no run"),
        (["sync"], 2, "no runs"),
        (["ui", "--run-root", "nowhere"], 2, "nowhere"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_leaves_nothing(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = himori(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("himori: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    program = [sys.executable, "-P", "-m", "pipeline", "submit", "experiment=demo", "cluster=slurm"]
    done = subprocess.run(program, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "srun" in done.stderr


def test_plan_changes_nothing_and_speaks_json(tmp_path: Path) -> None:
    done = himori("plan", "experiment=demo", "cluster=dev", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["plan"]["layout"]["tp"] == 2
    assert document["job_script"].startswith("#!/bin/bash")
    assert list(tmp_path.iterdir()) == []


def test_search_names_overrides_that_can_be_typed(tmp_path: Path) -> None:
    asked = ["hardware=dgx_h200", "model=llama3_8b", "precision=bf16", "nodes=1", "recipe.global_batch=64"]
    shown = himori("plan", "--search", *asked, cwd=tmp_path).stdout
    (first, *_) = [line.split() for line in shown.splitlines() if line.strip().startswith("layout.tp=")]
    again = himori("plan", *asked, *first, cwd=tmp_path)
    assert again.returncode == 0
    assert "planned only" not in again.stdout


def test_what_can_be_planned_but_not_trained_is_said(tmp_path: Path) -> None:
    asked = ["plan", "hardware=dgx_h100", "model=llama3_8b", "recipe.global_batch=64"]
    half = himori(*asked, "precision.dtype=fp16", cwd=tmp_path)
    assert half.returncode == 0
    assert "planned only, can't be submitted yet\n  not trainable by this version: precision.dtype=fp16" in half.stdout
    trainable = himori(*asked, "precision=fp8", cwd=tmp_path)
    assert trainable.returncode == 0
    assert "planned only" not in trainable.stdout


def test_help_lists_the_groups_and_the_exit_codes(tmp_path: Path) -> None:
    assert "conf" not in himori("--help", cwd=tmp_path).stderr
    assert "7 the plan was refused" in himori("--help", cwd=tmp_path).stdout
    shown = himori("plan", "--help", cwd=tmp_path).stdout
    assert re.search(r"experiment .*demo", shown)
    assert "dev, local, slurm" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    assert "himori" in himori("completion", shell, cwd=tmp_path).stdout


def test_an_empty_run_root_is_no_error(tmp_path: Path) -> None:
    done = himori("status", cwd=tmp_path)
    assert done.returncode == 0
    assert "no runs" in done.stdout
