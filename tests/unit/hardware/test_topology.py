"""Lists of ids, bus ids and distances; what no machine can be is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hardware.topology import (
    Distance,
    Gpu,
    Nic,
    NodeSnapshot,
    NumaNode,
    TopologyError,
    device_order,
    format_ids,
    normalize_bdf,
    parse_ids,
    pci_distance,
)

ROOT = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
GPU = (*ROOT, "0000:12:00.0", "0000:13:00.0")
NODE = NodeSnapshot(
    nodes=(NumaNode(id=0, cpus=(0, 1)), NumaNode(id=1, cpus=(2, 3))),
    cores=((0, 1), (2, 3)),
    packages=((0, 1, 2, 3),),
    gpus=(Gpu(bdf="0000:13:00.0"),),
    allowed=(0, 1, 2, 3),
    mems=(0, 1),
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("", ()), ("0", (0,)), ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5, 1", (1, 5)), ("3,3", (3,))],
)
def test_lists_of_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parse_ids(text) == ids


@pytest.mark.parametrize("text", ["x", "3-1", "1-", "-1", "0-3-5", "1 2", "N/A"])
def test_what_is_no_list_of_ids(text: str) -> None:
    with pytest.raises(TopologyError, match="no list of ids"):
        parse_ids(text)


@given(st.sets(st.integers(0, 300)))
def test_lists_of_ids_survive(ids: set[int]) -> None:
    assert parse_ids(format_ids(ids)) == tuple(sorted(ids))


@pytest.mark.parametrize(
    ("text", "bdf"),
    [
        ("0000:17:00.0", "0000:17:00.0"),
        ("00000000:AF:00.0", "0000:af:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("00018FD9:00:02.0", "18fd9:00:02.0"),
    ],
)
def test_bus_ids_are_written_one_way(text: str, bdf: str) -> None:
    assert normalize_bdf(text) == bdf


@pytest.mark.parametrize("text", ["", "17", "GPU0", "0000:17:00.8", "0000:17:00"])
def test_what_is_no_bus_id(text: str) -> None:
    with pytest.raises(TopologyError, match="no PCI bus id"):
        normalize_bdf(text)


def test_devices_in_the_order_cuda_has_them() -> None:
    in_order = [
        "0000:3b:00.0",
        "0000:af:00.0",
        "0000:af:00.1",
        "0001:00:00.0",
        "10000:00:00.0",
        "GPU2",
        "GPU10",
        "mlx5_bond_0",
    ]
    assert sorted(reversed(in_order), key=device_order) == in_order


@pytest.mark.parametrize(
    ("other", "same_node", "distance"),
    [
        (GPU, True, Distance.LOC),
        ((*ROOT, "0000:12:01.0", "0000:14:00.0"), True, Distance.PIX),
        ((*GPU[:-1], "0000:13:00.1"), True, Distance.PIX),
        ((*ROOT, "0000:12:01.0", "0000:14:00.0", "0000:15:00.0", "0000:16:00.0"), True, Distance.PXB),
        ((*ROOT, "0000:12:01.0", "0000:14:00.0", "0000:15:00.0"), True, Distance.PXB),
        (("pci0000:10", "0000:10:02.0", "0000:20:00.0"), True, Distance.PHB),
        (("pci0000:30", "0000:30:01.0", "0000:31:00.0"), True, Distance.NODE),
        (("pci0000:30", "0000:30:01.0", "0000:31:00.0"), False, Distance.SYS),
        (None, True, Distance.NODE),
        (None, False, Distance.SYS),
    ],
    ids=[
        "itself",
        "one switch",
        "one card",
        "two switches",
        "a bridge of its own",
        "host bridge",
        "node",
        "far",
        "unknown",
        "unknown, far",
    ],
)
def test_distance_by_pci_paths(other: tuple[str, ...] | None, same_node: bool, distance: Distance) -> None:
    assert pci_distance(GPU, other, same_node=same_node) is distance
    assert pci_distance(other, GPU, same_node=same_node) is distance


def test_functions_of_one_card_on_the_root_bus() -> None:
    one, other = ("pci0000:00", "0000:00:05.0"), ("pci0000:00", "0000:00:05.1")
    assert pci_distance(one, other, same_node=True) is Distance.PIX


def test_node_distance_without_slit_follows_the_sockets() -> None:
    apart = replace(NODE, packages=((0, 1), (2, 3)))
    assert NODE.node_distance(0, 0) < NODE.node_distance(0, 1) < apart.node_distance(0, 1)
    assert apart.node_distance(0, 1) < apart.node_distance(0, -1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": (NODE.nodes[0], NODE.nodes[0])}, "NUMA node 0 appears twice"),
        ({"nodes": (NODE.nodes[0], NumaNode(id=1, cpus=(1, 2)))}, "CPU in the NUMA nodes 1 appears twice"),
        ({"nodes": (replace(NODE.nodes[0], distances=(10,)), NODE.nodes[1])}, "node 0: 1 distances, 2 nodes"),
        ({"cores": ((0, 1), (1, 2))}, "CPU in the cores 1 appears twice"),
        ({"gpus": NODE.gpus * 2}, "GPU 0000:13:00.0 appears twice"),
        ({"nics": (Nic(name="mlx5_0"), Nic(name="mlx5_0"))}, "NIC mlx5_0 appears twice"),
        ({"allowed": ()}, "allowed CPUs none: none is online"),
        ({"allowed": (7,)}, "allowed CPUs 7: none is online"),
        ({"job_gpus": ("0000:99:00.0",)}, "'0000:99:00.0'.* aren't on this node"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        replace(NODE, **change)
