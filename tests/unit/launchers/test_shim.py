"""The exec shim binds what it becomes, as far as the kernel lets it, and says how far that was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launchers import shim

REFUSE = Path(__file__).resolve().parents[2] / "support" / "refuse.py"
SCHED_SETAFFINITY, SET_MEMPOLICY = 203, 238
SEEN = """
import json, os
from pipeline.hardware.memory_policy import get_policy
print(json.dumps([json.loads(os.environ.get("HIMORI_APPLIED", "null")), sorted(os.sched_getaffinity(0)), get_policy()]))
"""
FIRST = min(os.sched_getaffinity(0))
ALL = sorted(os.sched_getaffinity(0))


def run(options: dict[str, object], *, refused: tuple[int, ...] = ()) -> tuple[Any, list[int], list[Any]]:
    """What was applied, and the CPUs and the memory policy that the command has then."""
    command = shim.command({"death_signal": 9, **options}, [sys.executable, "-P", "-c", SEEN])
    if refused:
        command = [sys.executable, str(REFUSE), ",".join(map(str, refused)), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    applied, cpus, policy = json.loads(done.stdout)
    return applied, cpus, policy


def memory(mode: str, *nodes: int) -> dict[str, object]:
    return {"mode": mode, "nodes": list(nodes)}


@pytest.mark.parametrize(("asked", "granted"), [("preferred", "preferred_many"), ("bind", "bind")])
def test_cpus_and_memory_hold_from_the_first_instruction(asked: str, granted: str) -> None:
    applied, cpus, policy = run({"cpus": [FIRST], "memory": memory(asked, 0)})
    assert applied == {"affinity": True, "memory": memory(granted, 0), "refused": []}
    assert (cpus, policy) == ([FIRST], [granted, [0]])


def test_without_cpus_nothing_is_touched() -> None:
    assert run({}) == (None, ALL, ["default", []])


def test_a_node_that_is_not_there_leaves_memory_alone_and_says_so() -> None:
    applied, cpus, policy = run({"cpus": [FIRST], "memory": memory("bind", 900)})
    assert applied["memory"] is None
    assert [(one["what"], one["asked"], one["error"]) for one in applied["refused"]] == [
        ("memory", "bind 900", "EINVAL"),
        ("memory", "preferred_many 900", "EINVAL"),
        ("memory", "preferred 900", "EINVAL"),
    ]
    assert (cpus, policy) == ([FIRST], ["default", []])


def test_a_forbidden_memory_policy_leaves_the_cpus_bound() -> None:
    applied, cpus, _ = run({"cpus": [FIRST], "memory": memory("preferred", 0)}, refused=(SET_MEMPOLICY,))
    assert (applied["affinity"], applied["memory"]) == (True, None)
    assert {one["error"] for one in applied["refused"]} == {"EPERM"}
    assert cpus == [FIRST]


@pytest.mark.parametrize(
    ("cpus", "refused", "error"), [([1023], (), "EINVAL"), ([FIRST], (SCHED_SETAFFINITY,), "EPERM")]
)
def test_a_refused_affinity_leaves_the_worker_unbound(cpus: list[int], refused: tuple[int, ...], error: str) -> None:
    applied, seen, policy = run({"cpus": cpus, "memory": memory("preferred", 0)}, refused=refused)
    assert (applied["affinity"], applied["memory"]) == (False, None)
    assert [(one["what"], one["error"]) for one in applied["refused"]] == [("cpus", error)]
    assert (seen, policy) == (ALL, ["default", []])
