"""`himori probe`: this node, a recording of it, and what is neither."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.cli import HIMORI
from unit.placement.recorded import snapshot_of

from pipeline.hardware.recording import to_document
from pipeline.placement.binding import bind
from pipeline.placement.policy import LocalRank
from pipeline.rundir import to_jsonable

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


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_is_a_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"node.{suffix}"
    done = probe("--draw", path, "--theme", "dark", "--ranks", 2)
    assert (done.returncode, done.stdout) == (0, "")
    assert str(path) in done.stderr
    assert path.read_bytes().startswith({"svg": b"<svg", "png": b"\x89PNG"}[suffix])


def test_without_a_file_the_terminal_is_drawn_in() -> None:
    done = probe("--ranks", 2, "--draw")
    assert done.returncode == 0
    assert "╭─ NUMA 0" in done.stdout
    assert " rank 1 " in done.stdout
    both = probe("--ranks", 2, "--json", "--draw")
    assert json.loads(both.stdout)["bindings"]
    assert "╭─ NUMA 0" in both.stderr


def test_a_picture_of_another_kind_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = probe("--draw", tmp_path / "node.gif", "--read", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "must end in .svg or .png" in done.stderr


def test_several_texts_are_one_node(tmp_path: Path) -> None:
    lscpu, numactl = tmp_path / "lscpu.txt", tmp_path / "numactl.txt"
    lscpu.write_text(
        "CPU(s): 2\nThread(s) per core: 1\nCore(s) per socket: 2\nSocket(s): 1\nNUMA node(s): 1\n"
        "NUMA node0 CPU(s): 0-1\n"
    )
    numactl.write_text(
        "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 4443 MB\nnode 0 free: 3187 MB\n"
        "node distances:\nnode   0\n  0:  10\n"
    )
    document = json.loads(probe("--json", "--read", lscpu, numactl).stdout)
    assert document["snapshot"]["nodes"][0]["memory_free_bytes"] == 3187 << 20
    joined = "\n".join(path.read_text() for path in (lscpu, numactl))
    command = [*HIMORI, "probe", "--json", "--read", "-"]
    piped = subprocess.run(command, input=joined, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(piped.stdout) == document


def test_a_certificate_shows_where_the_ranks_of_its_run_were(tmp_path: Path) -> None:
    snapshot = snapshot_of("laptop")
    ranks = [LocalRank(local_rank=i, rank=6 + i) for i in range(2)]
    planned = [{"rank": one.rank, "planned": to_jsonable(one)} for one in bind(snapshot, ranks)]
    path = tmp_path / "n1.json"
    path.write_text(json.dumps({"schema": 1, "data": {"snapshot": to_document(snapshot), "ranks": planned}}))
    found = json.loads(probe("--json", "--read", path).stdout)["bindings"]
    assert [binding["rank"] for binding in found] == [6, 7]
    again = json.loads(probe("--json", "--read", path, "--ranks", 3).stdout)["bindings"]
    assert [binding["rank"] for binding in again] == [0, 1, 2]


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
