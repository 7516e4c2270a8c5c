"""On a node with a look, the answers of the kernel and the files of /sys are of one machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.certificates import ids
from support.cluster import DEV, skip_or_fail

PROBE = Path(__file__).with_name("fake_kernel_probe.py")


def ask(look: str, *prefix: str) -> dict[str, Any]:
    """What a program finds out on a machine that looks like that."""
    command = [str(DEV / "as-node.sh"), look, *prefix, sys.executable, str(PROBE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.stderr.startswith("refused: "):
        skip_or_fail(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Asked once, on a node of 384 CPUs and two NUMA nodes."""
    return ask("h100x4-94gb")


def test_size_and_affinity_agree_with_sysfs(found: dict[str, Any]) -> None:
    assert ids(found["cpus"]) == set(found["start"]) == set(range(384))
    assert (found["count"], found["nproc"], found["nodes"]) == (384, "384", "0-1")


def test_what_the_machine_lacks_is_refused_as_the_kernel_does(found: dict[str, Any]) -> None:
    assert [found[what] for what in ("unknown CPU", "unknown node", "no nodes")] == ["EINVAL"] * 3
    assert found["nobody"] == "ESRCH"


def test_a_place_is_inherited_whatever_the_environment(found: dict[str, Any]) -> None:
    assert found["own"] == found["child"] == [[2, 3, 9], ["preferred_many", [0, 1]]]
    assert found["status"] == {"Cpus_allowed_list": "2-3,9", "Mems_allowed_list": "0-1"}
    assert found["taskset"] == "2,3,9"


def test_every_thread_and_process_has_a_place_of_its_own(found: dict[str, Any]) -> None:
    assert found["thread"] == [[5], [5]]
    assert found["after the thread"] == [2, 3, 9]
    assert found["other process"] == [[7, 8], "7-8"]


def test_limits_of_a_container(found: dict[str, Any]) -> None:
    narrow = ask("h100x4-94gb", "env", "FAKENODE_MEMS=1", "taskset", "-c", "0-9")
    assert (len(narrow["start"]), narrow["nproc"], narrow["count"]) == (10, "10", found["count"])
    assert narrow["own"] == [[2, 3, 9], ["preferred_many", [1]]]
    assert narrow["status"]["Mems_allowed_list"] == "1"


@pytest.mark.parametrize("denied", ["mempolicy", "affinity"])
def test_a_forbidden_call_fails_with_eperm(denied: str) -> None:
    call = {"mempolicy": "set_policy('bind', [0])", "affinity": "os.sched_setaffinity(0, {0})"}[denied]
    script = f"import os; from pipeline.hardware.memory_policy import set_policy; {call}"
    command = [str(DEV / "as-node.sh"), "b200x8-6numa", "env", f"FAKENODE_DENY={denied}", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.stderr.startswith("refused: "):
        skip_or_fail(done.stderr)
    assert "Operation not permitted" in done.stderr
