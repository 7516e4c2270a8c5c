"""A commit that makes steps slower is found, confirmed beside the baseline's code, and called a regression."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.analysis.nights import CaseNight, Measured, SuiteNight, nights_of

pytestmark = pytest.mark.faults

REPOSITORY = Path(__file__).resolve().parents[2]
SUITE = """\
name: slow
pairs: 2
cases:
  - name: one
    overrides: [experiment=demo, cluster=local, ranks=2, layout.tp=1, recipe.steps=40]
    repeats: 1
    guard: 0.5
"""
MEASURED = "    start = time.perf_counter()\n    rate ="
SLOWER = "    start = time.perf_counter()\n    time.sleep(1.0)\n    rate ="


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_slow_commit_fails_and_the_same_code_does_not(tmp_path: Path) -> None:
    """Six nights of history, then a commit that sleeps a second a step; the pairs run both commits."""
    clone, root = tmp_path / "clone", tmp_path / "runs"
    git(REPOSITORY, "clone", "--quiet", str(REPOSITORY), str(clone))
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "slow.yaml").write_text(SUITE, encoding="utf-8")

    def himori(*arguments: str) -> subprocess.CompletedProcess[str]:
        options = ["suite=slow", "--conf-dir", str(tmp_path), "--run-root", str(root)]
        return subprocess.run(
            [sys.executable, "-P", "-m", "pipeline", *arguments, *options],
            env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    begun = himori("nightly", "--date", "2026-01-01")
    assert begun.returncode == 8, begun.stdout + begun.stderr
    assert himori("baseline", "set").returncode == 0
    nights = nights_of(root, "slow")
    first = nights.read("2026-01-01")
    assert first is not None
    assert first.commit == git(clone, "rev-parse", "HEAD")
    usual = first.cases["one"].measured[0].step_s
    assert usual is not None
    for day in range(2, 8):
        measured = (Measured(run_id="", step_s=usual * (1 + day % 3 / 100), nodes=("local",), invalid=""),)
        case = CaseNight(measured=measured, performance="PASS")
        nights.write(
            SuiteNight(suite="slow", date=f"2026-01-0{day}", started=0.0, commit=first.commit, cases={"one": case})
        )

    loop = clone / "pipeline" / "training" / "loop.py"
    text = loop.read_text(encoding="utf-8")
    assert MEASURED in text
    loop.write_text(text.replace(MEASURED, SLOWER), encoding="utf-8")
    git(clone, "commit", "--quiet", "-am", "slower")
    done = himori("nightly", "--date", "2026-01-08")
    assert done.returncode == 4, done.stdout + done.stderr
    found = nights.read("2026-01-08")
    assert found is not None
    case = found.cases["one"]
    assert case.performance == "FAIL"
    assert len(case.pairs) == 2
    said = " ".join(case.performance_reasons)
    assert "2 interleaved pairs" in said
    assert f"commits {first.commit}..{git(clone, 'rev-parse', 'HEAD')}" in said
