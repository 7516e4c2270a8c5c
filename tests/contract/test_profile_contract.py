"""A node that isn't what the hardware profile expects: recorded, or refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.cli import Run, Site

OTHER = "hardware.node_spec.numa_nodes=[33,66]"
DRIFT = "NUMA nodes with CPUs: expected 33 or 66, found"


def certificates(run: Run) -> list[dict[str, Any]]:
    folder: Path = run.path / "attempts" / "1" / "binding"
    return [json.loads(path.read_text())["data"] for path in folder.glob("*.json")]


def test_a_strict_run_ends_before_it_trains_and_names_all_nodes(site: Site) -> None:
    run = site.submit(OTHER, "cluster.strict_profile=true")
    assert run.wait() == 5
    end = json.loads((run.path / "attempts" / "1" / "end.json").read_text())["data"]
    nodes = [certificate["node"] for certificate in certificates(run)]
    assert end["state"] == "FAILED"
    assert all(f"{node} is not what profile laptop expects: {DRIFT}" in end["message"] for node in nodes)
    assert nodes
    assert not {event["kind"] for event in run.journal()} & {"start", "environment", "metrics"}


def test_any_other_run_goes_on_and_carries_the_difference(local_site: Site) -> None:
    run = local_site.submit(OTHER, "recipe.steps=6")
    assert run.wait() == 0
    (certificate,) = certificates(run)
    assert f"{certificate['drift'][0]['what']}: expected {certificate['drift'][0]['expected']}, found" == DRIFT
    assert run.mlflow().tags["himori.drift"].startswith(DRIFT)
    assert DRIFT in local_site.himori("logs", run.run_id).stdout
