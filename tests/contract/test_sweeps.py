"""What a user can count on of a sweep, wherever its points go: nothing twice, nothing lost, whoever is killed when.

The points end without training (support/quick), so that a test says something about the queue in seconds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.cli import HIMORI, Site, wait_until

QUICK = Path(__file__).parents[1] / "support" / "quick"
ONE_RANK = ("experiment=demo", "ranks=1", "layout.tp=1")


@pytest.fixture
def quick(site: Site, request: pytest.FixtureRequest) -> Site:
    """A site with a run root of its own, where runs take no time."""
    root = site.run_root.parent / request.node.name.replace("[", "-").replace("]", "")
    environment = {**site.environment, "PYTHONPATH": str(QUICK), "QUICK_SECONDS": "0"}
    return dataclasses.replace(site, run_root=root, environment=environment)


def command(site: Site, verb: str, *overrides: str) -> list[str]:
    """The command line of a sweep on a site."""
    return [verb, "-m", *ONE_RANK, *site.overrides, f"run_root={site.run_root}", *overrides]


def submit(site: Site, *overrides: str) -> dict[str, Any]:
    """Submits a sweep; what it says."""
    document: dict[str, Any] = json.loads(site.himori(*command(site, "submit", *overrides), "--json").stdout)
    return document


def states(site: Site, sweep: str = "last") -> dict[str, int]:
    """How many points are in which state."""
    (document,) = json.loads(site.himori("sweep", "status", sweep, "--json").stdout)
    found: dict[str, int] = document["states"]
    return found


def wait_for(site: Site, expected: dict[str, int], timeout_s: float = 90) -> None:
    """Until the newest sweep's points are in these states."""
    wait_until(lambda: states(site) == expected, timeout_s, f"{expected}, there are {states(site)}")


def runs_that_ran(site: Site) -> list[Path]:
    """Runs whose job began, by what the program in the supervisor's place leaves."""
    return [path.parent for path in site.run_root.glob("*/ran-from")]


def test_a_sweep_again_runs_what_is_missing_or_failed_and_nothing_twice(quick: Site) -> None:
    failing = dataclasses.replace(quick, environment={**quick.environment, "QUICK_FAIL": "1,3"})
    first = submit(failing, "seed=range(4)", 'sweep.where=["seed != 2"]')
    assert (first["points"], first["submitted"], len(first["jobs"])) == (3, 3, 1)
    assert [(one["seed"], one["reason"]) for one in first["left_out"]] == [("2", "where seed != 2")]
    wait_for(quick, {"FINISHED": 1, "FAILED": 2})
    again = submit(quick, "seed=range(4)", 'sweep.where=["seed != 2"]')
    assert again["sweep_id"] == first["sweep_id"]
    assert (again["submitted"], again["already"]) == (2, {"FINISHED": 1})
    wait_for(quick, {"FINISHED": 3})
    # A wider question shares the points that are there, and retry has nothing left to do.
    wider = submit(quick, "seed=range(5)")
    assert (wider["submitted"], wider["already"]) == (2, {"FINISHED": 3})
    wait_for(quick, {"FINISHED": 5})
    assert json.loads(quick.himori("sweep", "retry", wider["sweep_id"], "--json").stdout)["submitted"] == 0
    assert len(runs_that_ran(quick)) == 3 + 2 + 2
    table = json.loads(quick.himori("sweep", "table", "last", "--json", "--sort", "+seed").stdout)["points"]
    assert [(row["seed"], row["state"]) for row in table] == [(str(seed), "FINISHED") for seed in range(5)]
    assert Counter(row["tries"] for row in table) == {1: 3, 2: 2}


def test_points_stand_beneath_one_mlflow_run(quick: Site) -> None:
    if quick.name != "local":
        pytest.skip("the store is the same wherever the points ran")
    submit(quick, "seed=range(2)")
    wait_for(quick, {"FINISHED": 2})
    quick.himori("sync", "--run-root", str(quick.run_root))
    with sqlite3.connect(quick.run_root / "mlflow.db") as store:
        sweeps = store.execute("select run_uuid from tags where key = 'himori.sweep_id'").fetchall()
        parents = store.execute("select run_uuid, value from tags where key = 'mlflow.parentRunId'").fetchall()
    store.close()
    assert len(sweeps) == 1
    assert [parent for _, parent in parents] == [sweeps[0][0]] * 2
    assert len({child for child, _ in parents}) == 2


def test_two_people_at_once_run_each_point_once(quick: Site) -> None:
    together = [
        subprocess.Popen(
            [*HIMORI, *command(quick, "submit", "seed=range(6)"), "--json"],
            env={**os.environ, **quick.environment},
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    said = [json.loads(process.communicate(timeout=200)[0]) for process in together]
    assert [process.returncode for process in together] == [0, 0, 0]
    assert sum(one["submitted"] for one in said) == 6
    assert len({one["sweep_id"] for one in said}) == 1
    wait_for(quick, {"FINISHED": 6})
    assert len(runs_that_ran(quick)) == 6


def test_cancel_ends_what_waits_and_what_runs(quick: Site) -> None:
    slow = dataclasses.replace(quick, environment={**quick.environment, "QUICK_SECONDS": "600"})
    submit(slow, "seed=range(3)", "cluster.array_parallelism=1")
    wait_until(lambda: states(quick).get("RUNNING") == 1, 60, "the first point to run")
    assert "3 points ended" in quick.himori("sweep", "cancel", "last").stdout
    assert states(quick) == {"CANCELLED": 3}


def test_a_submitter_killed_on_its_way_leaves_nothing_half_made(quick: Site) -> None:
    effects = count_effects(quick)
    for portion in (0.7, 0.85, 0.97):
        check_killed(quick, round(effects * portion))


@pytest.mark.faults  # a few hundred sweeps, a few seconds each
@pytest.mark.timeout(3600)
def test_a_submitter_killed_before_every_effect(quick: Site) -> None:
    for kill_at in range(1, count_effects(quick) + 1):
        check_killed(quick, kill_at)


def count_effects(site: Site) -> int:
    """How many effects a submission has, in a run root of its own."""
    log = site.run_root / "effects"
    log.parent.mkdir(parents=True, exist_ok=True)
    counted = dataclasses.replace(site, run_root=site.run_root / "counted")
    assert submit_killed(counted, 0, log) == 0
    return len(log.read_text(encoding="utf-8").splitlines())


def submit_killed(site: Site, kill_at: int, log: Path) -> int:
    """Submits three points, killed before effect `kill_at`; the exit code."""
    environment = {**os.environ, **site.environment, "KILL_AT": str(kill_at), "KILL_LOG": str(log)}
    done = subprocess.run(
        [*HIMORI, *command(site, "submit", "seed=range(3)")],
        env=environment,
        capture_output=True,
        timeout=200,
        check=False,
    )
    return done.returncode


def check_killed(whole: Site, kill_at: int) -> None:
    """Kills a submission before one effect; asking again completes it, and each point runs once."""
    site = dataclasses.replace(whole, run_root=whole.run_root / f"killed-{kill_at}")
    assert submit_killed(site, kill_at, whole.run_root / "effects") == -signal.SIGKILL
    submit(site, "seed=range(3)")
    wait_for(site, {"FINISHED": 3})
    assert len(runs_that_ran(site)) == 3
