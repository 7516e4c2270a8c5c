"""A run of many minutes: supervisors don't grow, no step is lost, and MLflow ends with all of them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from support.cli import Site

MINUTES = float(os.environ.get("HIMORI_SOAK_MINUTES", "10"))
GROWTH_MIB = 20


@pytest.mark.soak
@pytest.mark.timeout(60 * (MINUTES + 10))
def test_a_long_run_loses_nothing_and_grows_nothing(local_site: Site) -> None:
    run = local_site.submit("recipe.steps=1000000")
    run.wait_for_step()
    time.sleep(30)
    supervisors = run.processes("launchers.supervisor")
    before = {pid: resident_mib(pid) for pid in supervisors}
    time.sleep(60 * MINUTES)
    grown = {pid: resident_mib(pid) - before[pid] for pid in supervisors}
    local_site.himori("cancel", run.run_id)
    losses = run.losses()
    assert list(losses) == list(range(1, len(losses) + 1))
    assert [step for step, _ in run.mlflow().losses] == list(losses)
    assert max(grown.values()) < GROWTH_MIB, grown
    run.assert_nothing_left()


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) / 1024
