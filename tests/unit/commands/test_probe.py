"""`himori probe`: this node, a recording of it, and what is neither."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.cli import HIMORI

NODES = Path(__file__).parents[1] / "placement" / "nodes"


def probe(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Calls himori probe."""
    command = [*HIMORI, "probe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_this_node() -> None:
    document = json.loads(probe("--ranks", 2, "--json").stdout)
    cpus = {cpu for binding in document["bindings"] for cpu in expand(binding["cpus"])}
    assert cpus <= os.sched_getaffinity(0)
    assert len(document["bindings"]) == 2


def test_a_recording_says_what_the_node_said(tmp_path: Path) -> None:
    recording = tmp_path / "node.yaml"
    here = json.loads(probe("--json", "-o", recording).stdout)
    replayed = json.loads(probe("--json", "--read", recording).stdout)
    assert replayed["bindings"] == here["bindings"]
    assert os.uname().nodename not in recording.read_text(encoding="utf-8").split()


def test_a_subset_of_cpus_is_respected() -> None:
    allowed = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(allowed), *HIMORI, "probe", "--ranks", "2", "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert {binding["cpus"] for binding in document["bindings"]} == {str(allowed)}
    assert all("OVERSUBSCRIBED" in binding["flags"] for binding in document["bindings"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "none of what is read"),
        ("{", "none of what is read"),
        ("a: 1\n", "cores"),
        ("<topology>", "hwloc"),
        ("\x00", ""),
    ],
)
def test_what_is_neither_is_refused_on_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    done = probe("--read", path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said.lower() in done.stderr.lower()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = probe("--read", tmp_path / "nope")
    assert done.returncode == 2
    assert "nope" in done.stderr


@pytest.mark.parametrize("path", sorted(NODES.glob("*.yaml"))[:3], ids=lambda path: path.stem)
def test_recorded_nodes_print(path: Path) -> None:
    done = probe("--read", path)
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


def expand(text: str) -> set[int]:
    """`0-3,8` as numbers."""
    parts = [part.split("-") for part in text.split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}
