"""Any process of a run is killed at any moment: the run ends as FAILED, in time, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from support.cli import Run, Site, wait_until

ROUNDS = 10
LONG = "recipe.steps=100000"
VICTIMS = ("launchers.supervisor", "pipeline.training")


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("place", ["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def test_a_random_process_is_killed_at_a_random_moment(place: str, seed: int, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(f"{place}_site")
    chance = random.Random(seed)
    run = site.submit(LONG)
    wait_until(lambda: bool(run.processes(VICTIMS[0])), 60, "the supervisors")
    time.sleep(chance.uniform(0, 20))
    victim = chance.choice([pid for module in VICTIMS for pid in run.processes(module)])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: run.status()["state"] == "FAILED", 90, f"the run to be FAILED (seed {seed})")
    assert "rank" in run.end()["message"]
    assert run.wait() == 5
    check_tracking(run)
    run.assert_nothing_left()


def check_tracking(run: Run) -> None:
    """Every step of the journal is in MLflow, once."""
    shown = run.mlflow()
    assert shown.status == "FAILED"
    assert [step for step, _ in shown.losses] == sorted(run.losses())


@pytest.mark.faults
def test_killing_the_syncer_costs_the_run_nothing(local_site: Site) -> None:
    run = local_site.submit("recipe.steps=200")
    run.wait_for_step()
    for pid in run.processes("pipeline.tracking.sync"):
        os.kill(pid, signal.SIGKILL)
    assert run.wait() == 0
    assert [step for step, _ in run.mlflow().losses] == list(range(1, 201))
