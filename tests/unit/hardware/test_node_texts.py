"""What people have of a node, in one text or several: told apart, joined, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import yaml
from unit.placement.recorded import NODES

from pipeline.hardware.node_texts import NodeText, is_recording, snapshot_of_texts
from pipeline.hardware.recording import format_cores
from pipeline.hardware.topology import NodeSnapshot, TopologyError

TOPO = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t0-1,8-9\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t4-5,12-13\t2\t\tN/A
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_7
"""
LSCPU = """\
Architecture:        x86_64
CPU(s):              16
On-line CPU(s) list: 0-15
Thread(s) per core:  2
Core(s) per socket:  4
Socket(s):           2
NUMA node(s):        4
NUMA node0 CPU(s):   0-1,8-9
NUMA node1 CPU(s):   2-3,10-11
NUMA node2 CPU(s):   4-5,12-13
NUMA node3 CPU(s):   6-7,14-15
"""
NUMACTL = """\
available: 5 nodes (0-4)
node 0 cpus: 0 1 8 9
node 0 size: 1024 MB
node 0 free: 512 MB
node 1 cpus: 2 3 10 11
node 1 size: 1024 MB
node 1 free: 512 MB
node 2 cpus: 4 5 12 13
node 2 size: 1024 MB
node 2 free: 512 MB
node 3 cpus: 6 7 14 15
node 3 size: 0 MB
node 3 free: 0 MB
node 4 cpus:
node 4 size: 96 MB
node 4 free: 96 MB
node distances:
node   0   1   2   3   4
  0:  10  12  21  21  80
  1:  12  10  21  21  80
  2:  21  21  10  12  80
  3:  21  21  12  10  80
  4:  80  80  80  80  10
"""
XML = '<system version="1"><cpu numaid="0" affinity="0000000f"></cpu></system>'


def read(*texts: str) -> NodeSnapshot:
    return snapshot_of_texts([NodeText(f"file{i}", text) for i, text in enumerate(texts)])


@pytest.mark.parametrize(
    "texts",
    [
        (TOPO, LSCPU, NUMACTL),
        (NUMACTL, TOPO, LSCPU),
        ("\n".join((TOPO, LSCPU, NUMACTL)),),
        (f"$ nvidia-smi topo -m\n{TOPO}\n$ lscpu\n{LSCPU}", f"$ numactl -H\n{NUMACTL}"),
    ],
    ids=["three", "another order", "one", "two, with prompts"],
)
def test_three_tables_are_one_node(texts: Sequence[str]) -> None:
    snapshot = read(*texts)
    assert [node.id for node in snapshot.nodes] == [0, 1, 2, 3, 4]
    assert [node.memory_free_bytes for node in snapshot.nodes] == [512 << 20] * 3 + [0, 96 << 20]
    assert format_cores(snapshot.cores) == ["0-7/8-15"]
    assert len(snapshot.packages) == 2
    assert [gpu.numa_node for gpu in snapshot.gpus] == [0, 2]
    assert [nic.name for nic in snapshot.nics] == ["mlx5_7"]
    assert (snapshot.job_gpus, snapshot.untold) == (("GPU0", "GPU1"), ())
    assert snapshot.nodes[0].distances == (10, 12, 21, 21, 80)


@pytest.mark.parametrize(
    ("texts", "untold", "nodes"),
    [
        ((TOPO,), ("cpus",), [0, 2]),
        ((TOPO, LSCPU), (), [0, 1, 2, 3]),
        ((LSCPU,), ("gpus", "nics"), [0, 1, 2, 3]),
        ((LSCPU, NUMACTL), ("gpus", "nics"), [0, 1, 2, 3, 4]),
        ((XML,), ("cpus",), [0]),
    ],
)
def test_what_is_not_there_is_said(texts: Sequence[str], untold: tuple[str, ...], nodes: list[int]) -> None:
    snapshot = read(*texts)
    assert snapshot.untold == untold
    assert [node.id for node in snapshot.nodes] == nodes
    assert set(snapshot.allowed) <= set(snapshot.online)


@pytest.mark.parametrize("name", NODES)
def test_every_recording_is_one(name: str) -> None:
    text = NodeText(name, yaml.safe_dump(NODES[name]["snapshot"], sort_keys=False))
    assert is_recording([text])
    assert snapshot_of_texts([text]).cores


def test_a_certificate_and_json_have_the_recording_in_them() -> None:
    recording = NODES["laptop"]["snapshot"]
    whole = read(yaml.safe_dump(recording))
    assert read(json.dumps({"schema": 1, "data": {"node": "n1", "snapshot": recording}})) == whole
    assert read(json.dumps({"snapshot": recording, "bindings": []})) == whole


def test_tables_are_no_recording() -> None:
    assert not is_recording([NodeText("a", LSCPU)])


OTHER_LSCPU = LSCPU.replace("4-5,12-13", "4,12").replace("6-7,14-15", "5-7,13-15")
RECORDING = yaml.safe_dump(NODES["laptop"]["snapshot"])
REFUSED = {
    "numactl alone": ((NUMACTL,), "file0: numactl -H doesn't say which CPUs are one core"),
    "numactl and topo": ((NUMACTL, TOPO), "file0: numactl -H doesn't say"),
    "one kind twice": ((LSCPU, TOPO, LSCPU), "file0 and file2 are both lscpu"),
    "a recording and more": ((LSCPU, RECORDING), "file1 is a recording, which tells all: leave out file0"),
    "XML and more": ((XML, TOPO), "file0 is NCCL topology XML, which tells all: leave out file1"),
    "lscpu as JSON": (('{\n "lscpu": [', TOPO), "file0: lscpu -J is not read; give the output of plain `lscpu`"),
    "lscpu -p": (("# The following is the parsable format, which\n0,0,0,0",), "lscpu -p is not read"),
    "lscpu -e": (("CPU NODE SOCKET CORE L1d\n  0    0      0    0 0\n",), "lscpu -e is not read"),
    "numactl --show": (("policy: default\nphyscpubind: 0 1\n",), "numactl --show is not read"),
    "another language": (("アーキテクチャ: x86_64\n",), "English output, as with LC_ALL=C"),
    "another machine's lscpu": ((TOPO, OTHER_LSCPU), "file0: nvidia-smi topo: GPU1 is near"),
    "another machine's numactl": ((LSCPU, NUMACTL.replace("0 1 8 9", "0 1 8")), "file1: node 0: CPUs 0-1,8-9 by lscpu"),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused_by_name(texts: Sequence[str], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(*texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CUTS = [(text, line) for text in (TOPO, LSCPU, NUMACTL) for line in range(1, len(text.rstrip().splitlines()))]


@pytest.mark.parametrize(("whole", "line"), CUTS, ids=lambda value: str(value)[:12].strip())
def test_a_text_that_is_cut_is_refused_or_whole_without_its_end(whole: str, line: int) -> None:
    """Line by line: never a node that isn't the one of the whole text."""
    cut = "\n".join(whole.splitlines()[:line])
    rest = [] if whole is TOPO else [LSCPU] if whole is NUMACTL else []
    try:
        found = read(cut, *rest)
    except TopologyError:
        return
    expected = read(whole, *rest)
    assert (found.nodes, found.cores, found.gpus) == (expected.nodes, expected.cores, expected.gpus)
