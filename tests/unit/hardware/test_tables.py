"""Topology tables as people paste them: each quirk is read right, each cut is refused by line."""

from __future__ import annotations

import pytest

from pipeline.hardware.cpu_tables import parse_lscpu
from pipeline.hardware.table_snapshot import snapshot_of_topo
from pipeline.hardware.tables import parse_topo
from pipeline.hardware.topology import Distance, TopologyError, format_ids, parse_ids
from pipeline.placement.binding import bind
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank

PLAIN = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\t0-3,8-11\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t4-7,12-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_7
"""


def shown(text: str) -> str:
    """What was understood, in short."""
    table = parse_topo(text)
    gpus = [f"{gpu.name} {format_ids(gpu.cpus)}@{format_ids(gpu.numa or ()) or '?'}" for gpu in table.gpus]
    near = [f"{link.a}-{link.b}" for link in table.links if link.distance <= Distance.PXB]
    return "; ".join([*gpus, *near])


USUAL = "GPU0 0-3,8-11@0; GPU1 4-7,12-15@1; GPU0-NIC0"
QUIRKS = {
    "tabs, with a legend": (PLAIN, USUAL.replace("NIC0", "mlx5_7")),
    "fenced, blank line below the header": (
        "```\n" + PLAIN.replace("ID\n", "ID\n\n", 1).partition("\n\nNIC Legend")[0] + "\n```\nMore text.\n",
        USUAL,
    ),
    "among other output, header underlined": (
        "$ nvidia-smi topo -m\n" + PLAIN.replace("\tGPU0\t", "\t\x1b[4mGPU0\t").replace("NUMA ID", "NUMA ID\x1b[0m"),
        USUAL.replace("NIC0", "mlx5_7"),
    ),
    "re-spaced, short headers": (
        """
              GPU0  GPU1  NIC0  CPU Affinity  NUMA  GPU NUMA
        GPU0   X    NV18  PIX   0-3,8-11      0     N/A
        GPU1  NV18   X    SYS   4-7,12-15     1     N/A
        """,
        USUAL,
    ),
    "one blank between the last columns": (
        """
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity      GPU NUMA ID
GPU0     X      NV18    PIX     0-3,8-11    0 N/A
GPU1    NV18     X      SYS     4-7,12-15    1 N/A
""",
        USUAL,
    ),
    "no blank column in front, HCAs by name, -mp": (
        "GPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tSYS\tPIX\t0-3,8-11\t0\nGPU1\tSYS\t X \tSYS\t4-7,12-15\t1\nmlx5_0 PIX\tSYS\t X \t\t\n",
        USUAL.replace("NIC0", "mlx5_0"),
    ),
    "merged names and cells": (
        "\tGPU0\tGPU1\tNIC0NIC1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV18\tPIXNODE\t0-3,8-11\t0\nGPU1\tNV18\t X \tSYSSYS\t4-7,12-15\t1\n",
        USUAL,
    ),
    "no NUMA column": (
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-3,8-11\nGPU1\tPHB\t X \t4-7,12-15\n",
        "GPU0 0-3,8-11@?; GPU1 4-7,12-15@?",
    ),
    "NUMA N/A": (
        "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-23\tN/A\n",
        "GPU0 0-23@?",
    ),
    "lists with holes, several NUMA nodes": (
        "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0,2-5,9\t0,2-17\t\t2\n",
        "GPU0 0,2-5,9@0,2-17",
    ),
    "blank CPU affinity, tabs": (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\t\t0\t\tN/A\nGPU1\tNV18\t X \t5\t1\t\tN/A\n",
        "GPU0 @0; GPU1 5@1",
    ),
    "blank CPU affinity, tabs turned into blanks": (
        """
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18            0               N/A
GPU1    NV18     X      5       1               N/A
""",
        "GPU0 @0; GPU1 5@1",
    ),
    "blank CPU affinity, aligned with the header": (
        """
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18                    0               N/A
GPU1    NV18     X      5               1               N/A
""",
        "GPU0 @0; GPU1 5@1",
    ),
}


@pytest.mark.parametrize("name", QUIRKS)
def test_quirks_are_read_right(name: str) -> None:
    text, expected = QUIRKS[name]
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("CPU Affinity", "CPU", "no header line with GPU0 and 'CPU Affinity'"),
        ("GPU1\tNV18\t X \tSYS\t4-7,12-15\t1\t\tN/A\n", "", "line 1: column GPU1 has no row: the table is cut"),
        ("GPU1\tNV18\t X ", "GPU2\tNV18\t X ", "line 3: row 'GPU2' has no column; columns are GPU0, GPU1, NIC0"),
        ("GPU1\tNV18\t X ", "GPU0\t X \tNV18", "line 3: a second row GPU0"),
        ("GPU1\tNV18\t X ", "GPU1\t X \tNV18", "line 3: row GPU1 must have its one X in column GPU1"),
        ("\tSYS\t4-7,12-15\t1\t\tN/A", "", "line 3: 2 cells where the header has 3 columns"),
        ("\t4-7,12-15\t1\t\tN/A", "", "line 3: .*cut|line 3: the row ends"),
        ("12-15\t1\t\tN/A", "12-15", "line 3: .*cut|line 3: the row ends"),
        ("12-15\t1\t\tN/A", "12-", "line 3: .*cut|line 3: the row ends"),
        ("12-15", "12-", "line 3: '4-7,12-' is no list of ids"),
        ("4-7,12-15\t1\t\tN/A", "4-7\t1\t2\tN/A", "line 3: 4 values behind the matrix, columns are cpus, numa"),
        ("NV18\t X \tSYS", "NV18\t X \tFAR", "line 3: 2 cells where the header has 3 columns"),
        ("NIC0\tPIX\tSYS", "NIC0\tPIX\tNODE", "line 3: GPU1 to NIC0 is SYS, but NIC0 to GPU1 is NODE"),
        ("NIC0: mlx5_7", "NIC1: mlx5_7", "line 1: the NIC legend names NIC1, columns are NIC0"),
        ("0-3,8-11\t0\t", "\t\t", "line 2: GPU0 has neither CPU nor NUMA affinity"),
    ],
)
def test_cut_or_malformed_tables_are_refused_by_line(old: str, new: str, message: str) -> None:
    assert old in PLAIN
    with pytest.raises(TopologyError, match=message):
        parse_topo(PLAIN.replace(old, new, 1))


def test_every_truncation_of_the_gpu_rows_is_refused() -> None:
    """Without NIC rows the table is whole; that is how some people paste it."""
    table = PLAIN.partition("\nNIC0\t")[0]
    assert shown(table) == USUAL
    for length in range(len(table)):
        with pytest.raises(TopologyError):
            parse_topo(table[:length])


def ranks(count: int) -> list[LocalRank]:
    return [LocalRank(local_rank=i, rank=i) for i in range(count)]


def binding_of(text: str) -> list[str]:
    snapshot = snapshot_of_topo(parse_topo(text))
    bindings = bind(snapshot, ranks(len(snapshot.gpus)))
    return [f"{b.home} {format_ids(b.cpus)} {','.join(flag.value for flag in b.flags)}" for b in bindings]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["0-3,8-11\t0", "0-3,8-11\t0"], ["0 0-1,8-9 EXACT", "0 2-3,10-11 EXACT"]),
        (["0-3\t0", "4-7\t1"], ["0 0-3 EXACT", "1 4-7 EXACT"]),
        (["0-3\t0,2-9", "4-7\t1,10-17"], ["0 0-3 EXACT", "1 4-7 EXACT"]),
        (["0-7\t0,2-8", "0-7\t0,2-8"], ["0 0-3 EXACT", "0 4-7 EXACT"]),
        (["0-7\t0-1", "0-7\t0-1"], ["None 0-3 DEGRADED", "None 4-7 DEGRADED"]),
        (["0-7\tN/A", "0-7\tN/A"], ["None 0-3 DEGRADED", "None 4-7 DEGRADED"]),
        (["\t0", "5\t1"], ["0 5 FALLBACK,OVERSUBSCRIBED", "1 5 OVERSUBSCRIBED"]),
    ],
    ids=[
        "two ranges are siblings",
        "nodes",
        "GPU memory nodes",
        "one node and GPU memory",
        "nothing known",
        "N/A",
        "no local CPU allowed",
    ],
)
def test_table_is_bound(rows: list[str], expected: list[str]) -> None:
    text = f"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t{rows[0]}\nGPU1\tSYS\t X \t{rows[1]}\n"
    assert binding_of(text) == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["\t0", "\t1"], "no GPU has a CPU affinity"),
        (["0-3\t0", "4-7\t0"], "node 0 has CPUs 0-3, for GPU1 4-7"),
        (["\t1", "0\t0"], r"the CPUs of nodes \[1\] can't be told"),
    ],
)
def test_table_that_does_not_tell_the_nodes_is_refused(rows: list[str], message: str) -> None:
    text = f"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t{rows[0]}\nGPU1\tSYS\t X \t{rows[1]}\n"
    with pytest.raises(TopologyError, match=message):
        binding_of(text)


LSCPU = """\
Thread(s) per core: 2
Core(s) per socket: 12
Socket(s): 1
NUMA node(s): 3
NUMA node0 CPU(s): 0-3,12-15
NUMA node1 CPU(s): 4-7,16-19
NUMA node2 CPU(s): 8-11,20-23
"""


def test_table_with_the_cpus_of_lscpu_knows_siblings_and_spare_nodes() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-2\t0\nGPU1\tSYS\t X \t4-7,16-19\t1\n"
    snapshot = snapshot_of_topo(parse_topo(text), parse_lscpu(LSCPU))
    assert snapshot.allowed == parse_ids("0-2,4-11,16-23")
    assert [b.cpus for b in bind(snapshot, ranks(2))] == [(0, 1, 2), parse_ids("4-7,16-19")]
    spread = bind(snapshot, ranks(2), BindingPolicy(cpus=CpuPolicy.spread))
    assert [format_ids(b.cpus) for b in spread] == ["0-2,8-9,20-21", "4-7,10-11,16-19,22-23"]


def test_memory_nodes_of_gpus_are_nodes_without_cpus() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-3\t0\t\t1\n"
    snapshot = snapshot_of_topo(parse_topo(text))
    assert [(node.id, node.cpus) for node in snapshot.nodes] == [(0, (0, 1, 2, 3)), (1, ())]
    assert snapshot.mems == (0,)


def test_lscpu_of_another_machine_is_refused() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-5\t0\n"
    with pytest.raises(TopologyError, match="GPU0 is near CPUs 0-5 of node 0, lscpu has other ones"):
        snapshot_of_topo(parse_topo(text), parse_lscpu(LSCPU))
