"""The search for hyperparameters: trials are ordinary points, and the driver can be killed and continued."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.cli import Site, wait_until

QUICK = Path(__file__).parents[1] / "support" / "quick"
TRIALS = 8
SPACE = (
    "sweeper=optuna",
    f"sweeper.trials={TRIALS}",
    "sweeper.startup_trials=3",
    "experiment=demo",
    "ranks=1",
    "layout.tp=1",
    "optimizer.lr=tag(log,interval(1e-4,1e-1))",
    "optimizer.min_lr=0",
    "recipe.micro_batch=2,4",
)


@pytest.fixture
def quick(local_site: Site, tmp_path: Path) -> Site:
    """This machine with a run root of its own, where runs take no time."""
    environment = {**local_site.environment, "PYTHONPATH": str(QUICK), "QUICK_SECONDS": "0"}
    return dataclasses.replace(local_site, run_root=tmp_path / "runs", environment=environment)


def submit(site: Site) -> dict[str, Any]:
    """Starts the search or goes on with it."""
    arguments = ["submit", "-m", "--json", *SPACE, *site.overrides, f"run_root={site.run_root}"]
    document: dict[str, Any] = json.loads(site.himori(*arguments).stdout)
    return document


def table(site: Site) -> list[dict[str, Any]]:
    """The trials there are."""
    rows: list[dict[str, Any]] = json.loads(site.himori("sweep", "table", "last", "--json").stdout)["points"]
    return rows


def test_a_killed_driver_goes_on_and_no_trial_runs_twice(quick: Site) -> None:
    first = submit(quick)
    log = Path(first["sweep_dir"]) / "search.log"
    wait_until(lambda: sum(row["state"] == "FINISHED" for row in table(quick)) >= 2, 90, "two trials")
    os.kill(first["driver"], signal.SIGKILL)
    again = submit(quick)
    assert again["sweep_id"] == first["sweep_id"]
    wait_until(lambda: f"{TRIALS} of {TRIALS} trials ended" in log.read_text(encoding="utf-8"), 120, "all trials")
    rows = table(quick)
    assert Counter(row["state"] for row in rows) == {"FINISHED": len(rows)}
    assert len(rows) <= TRIALS
    assert len({float(row["optimizer.lr"]) for row in rows}) == len(rows) >= TRIALS - 1
    assert {row["recipe.micro_batch"] for row in rows} <= {"2", "4"}
    ran = Counter((path.parent / "point.json").read_text() for path in quick.run_root.glob("*/ran-from"))
    assert len(ran) == len(rows)
    best = min(row["loss"] for row in rows)
    assert f"best {best:.5g} with optimizer.lr=" in log.read_text(encoding="utf-8")
