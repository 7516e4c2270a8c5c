"""The submitting process is killed before each of its effects: no half-made job runs, and `status` tells the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cli import HIMORI, Run, Site, wait_until

KILL_AT = Path(__file__).parents[1] / "support" / "kill_at"
NOT_LATE: Mapping[str, str] = {}
ARGUMENTS = ("submit", "experiment=demo", "recipe.steps=6")


def submit_killed(site: Site, root: Path, kill_at: int, late: Mapping[str, str] = NOT_LATE) -> int:
    """Submits into `root`, killed before effect `kill_at` or so many seconds later; its exit code."""
    environment = {
        **os.environ,
        **site.environment,
        "PYTHONPATH": str(KILL_AT),
        "KILL_AT": str(kill_at),
        "KILL_LOG": str(root.parent / "effects"),
        **late,
    }
    command = [*HIMORI, *ARGUMENTS, *site.overrides, f"run_root={root}"]
    return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False).returncode


def count_effects(site: Site, root: Path) -> int:
    """How many effects a whole submission has; the run it makes is ended."""
    assert submit_killed(site, root, 0) == 0
    site.himori("cancel", "last", "--run-root", str(root))
    effects = (root.parent / "effects").read_text(encoding="utf-8").splitlines()
    assert any("Popen" in effect for effect in effects)
    return len(effects)


@pytest.mark.timeout(900)  # some thirty submissions
def test_killed_before_every_effect(site: Site, tmp_path: Path) -> None:
    effects = count_effects(site, tmp_path / "counted")
    states = []
    for kill_at in range(1, effects + 1):
        root = tmp_path / f"killed-{kill_at}"
        assert submit_killed(site, root, kill_at) == -signal.SIGKILL
        states.append(check_truth(site, root))
    assert "PREPARED" in states
    for seconds in ("0.01", "0.05", "0.2"):
        root = tmp_path / f"late-{seconds}"
        assert submit_killed(site, root, effects, {"KILL_LATE": seconds}) == -signal.SIGKILL
        states.append(check_truth(site, root))
    assert {"QUEUED", "RUNNING"} & set(states)


def check_truth(site: Site, root: Path) -> str:
    """The state right after the kill; a run that `status` calls unsubmitted or held never trains."""
    statuses = json.loads(site.himori("status", "--json", "--run-root", str(root)).stdout)
    if not statuses:
        return "NOTHING"
    (status,) = statuses
    run = Run(site=site, run_id=status["run_id"], path=Path(status["run_dir"]), job_id="")
    state: str = status["state"]
    match state:
        case "PREPARED":
            assert not run.processes("launchers.supervisor")
        case "HELD":
            assert not run.processes()
            assert "held" in status["message"]
            site.himori("cancel", run.run_id, "--run-root", str(root))
            (after,) = json.loads(site.himori("status", "--json", "--run-root", str(root)).stdout)
            assert after["state"] in ("PREPARED", "CANCELLED")
        case "QUEUED" | "RUNNING":
            wait_until((run.path / "attempts" / "1" / "handle.json").exists, 20, "the handle")
            site.himori("cancel", run.run_id, "--run-root", str(root))
        case _:
            raise AssertionError(f"{state}: {status['message']}")
    run.assert_nothing_left()
    return state
