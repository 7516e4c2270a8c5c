"""Text of lscpu and numactl: nodes, siblings and sockets, or a refusal that names what is missing."""

from __future__ import annotations

import pytest

from pipeline.hardware.cpu_tables import parse_lscpu, parse_numactl, with_memory
from pipeline.hardware.recording import format_cores
from pipeline.hardware.topology import NumaNode, TopologyError, format_ids

TWO_SOCKETS = """\
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
available: 3 nodes (0-2)
node 0 cpus: 0 1 8 9
node 0 size: 64 MB
node 0 free: 32 MB
node 1 cpus: 2 3
node 1 size: 64 MB
node 1 free: 1 MB
node 2 cpus:
node 2 size: 16 MB
node 2 free: 16 MB
node distances:
node   0   1   2
  0:  10  20  80
  1:  20  10  80
  2:  80  80  10
"""


def lscpu(threads: int, cores: int, *nodes: str) -> str:
    lines = [f"Thread(s) per core: {threads}", f"Core(s) per socket: {cores}", "Socket(s): 1"]
    return "\n".join(
        [*lines, f"NUMA node(s): {len(nodes)}", *(f"NUMA node{i} CPU(s): {n}" for i, n in enumerate(nodes))]
    )


def test_lscpu() -> None:
    table = parse_lscpu(TWO_SOCKETS)
    assert [format_ids(node.cpus) for node in table.nodes] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert format_cores(table.cores) == ["0-7/8-15"]
    assert [format_ids(cpus) for cpus in table.packages] == ["0-3,8-11", "4-7,12-15"]


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        (lscpu(1, 4, "0-3"), ["0-3"]),
        (lscpu(2, 4, "0-3", "4-7"), ["0/1", "2/3", "4/5", "6/7"]),
        (lscpu(2, 4, "0,2,4,6", "1,3,5,7"), ["0-3/4-7"]),
        ("On-line CPU(s) list: 0-6\n" + lscpu(2, 4, "0-1,4-5", "2-3,6"), ["0-2/4-6", "3"]),
    ],
    ids=["no SMT", "neighbours", "interleaved nodes", "one CPU offline"],
)
def test_siblings_from_numbering(text: str, cores: list[str]) -> None:
    assert format_cores(parse_lscpu(text).cores) == cores


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NUMA node3 CPU(s):   6-7,14-15\n", "", "3 lines 'NUMA nodeN CPU.s.' for 4 NUMA nodes: the text is cut"),
        ("NUMA node(s):        4\n", "", "no line 'NUMA node.s.' with a number"),
        ("Socket(s):           2", "Socket(s):", "no line 'Socket.s.' with a number"),
        ("list: 0-15", "list: 0-14", "CPUs 0-14 are online, NUMA nodes have 0-15"),
        ("Core(s) per socket:  4", "Core(s) per socket:  3", "16 CPUs in NUMA nodes, but 6 cores of 2 threads"),
        ("6-7,14-15", "6-7,14-", "'6-7,14-' is no list of ids"),
    ],
)
def test_lscpu_that_is_cut_or_contradicts_itself_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_lscpu(TWO_SOCKETS.replace(old, new))


def test_list_cut_within_its_last_line_is_refused() -> None:
    with pytest.raises(TopologyError, match="7 CPUs in NUMA nodes, but 4 cores of 2 threads"):
        parse_lscpu(lscpu(2, 4, "0-1,4-5", "2-3,6"))


def test_siblings_that_can_not_be_told_are_refused() -> None:
    with pytest.raises(TopologyError, match="siblings can't be told"):
        parse_lscpu(lscpu(2, 4, "0-7"))


def test_numactl() -> None:
    assert parse_numactl(NUMACTL) == (
        NumaNode(id=0, cpus=(0, 1, 8, 9), memory_total_bytes=2**26, memory_free_bytes=2**25, distances=(10, 20, 80)),
        NumaNode(id=1, cpus=(2, 3), memory_total_bytes=2**26, memory_free_bytes=2**20, distances=(20, 10, 80)),
        NumaNode(id=2, cpus=(), memory_total_bytes=2**24, memory_free_bytes=2**24, distances=(80, 80, 10)),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("available: 3 nodes (0-2)", "", "no line 'available: N nodes'"),
        ("(0-2)", "(0-3)", "'available: 3 nodes .0-3.': the list has 4 nodes"),
        ("node 1 cpus: 2 3\n", "", "no line 'node 1 cpus'"),
        ("node 1 free: 1 MB", "node 1 free: 1", "'node 1 free: 1' is no number of MB"),
        ("  2:  80  80  10\n", "", "no row of 3 distances for node 2"),
        ("  0:  10  20  80", "  0:  10  20", "no row of 3 distances for node 0"),
    ],
)
def test_numactl_that_is_cut_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_numactl(NUMACTL.replace(old, new))


def test_both_together() -> None:
    cpus = parse_lscpu(lscpu(1, 6, "0-1", "2-5"))
    nodes = (
        NumaNode(id=0, cpus=(0, 1), memory_total_bytes=1),
        NumaNode(id=1, cpus=(2, 3, 4, 5), memory_total_bytes=1),
        NumaNode(id=2, cpus=(), memory_total_bytes=1),
    )
    assert with_memory(cpus, nodes).nodes == nodes
    with pytest.raises(TopologyError, match="numactl doesn't have node 1"):
        with_memory(cpus, nodes[:1])
    with pytest.raises(TopologyError, match="node 0: CPUs 0-1 by lscpu, 0 by numactl"):
        with_memory(cpus, (NumaNode(id=0, cpus=(0,)), *nodes[1:]))
