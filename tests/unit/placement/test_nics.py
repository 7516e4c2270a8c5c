"""Which NICs are for training, and which of them a GPU gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pipeline.hardware.topology import Distance, Gpu, Link, LinkLayer, Nic, NodeSnapshot, NumaNode, Port
from pipeline.placement.nics import classify_nics
from pipeline.placement.rails import choose_nics

IB, ROCE, OTHER = LinkLayer.infiniband, LinkLayer.ethernet, LinkLayer.unspecified


def nic(name: str, rate: float | None = 400, layer: LinkLayer = IB, *, active: bool = True) -> Nic:
    return Nic(name=name, ports=(Port(number=1, active=active, rate_gbps=rate, link_layer=layer),))


def node(distances: Mapping[str, str], nics: Sequence[Nic] = ()) -> NodeSnapshot:
    """GPUs g0, g1… with a distance to each of the NICs: `mlx5_0: PIX SYS`."""
    rows = {name: [Distance[word] for word in row.split()] for name, row in distances.items()}
    gpus = [f"g{i}" for i in range(len(next(iter(rows.values()))))]
    return NodeSnapshot(
        nodes=(NumaNode(id=0, cpus=(0,)), NumaNode(id=1, cpus=(1,))),
        cores=((0,), (1,)),
        gpus=tuple(Gpu(bdf=gpu, numa_node=0) for gpu in gpus),
        nics=tuple(nics) or tuple(Nic(name=name) for name in rows),
        allowed=(0, 1),
        mems=(0, 1),
        links=tuple(Link(a=gpu, b=name, distance=row[i]) for name, row in rows.items() for i, gpu in enumerate(gpus)),
    )


def sorted_out(snapshot: NodeSnapshot, *, excluded: Sequence[str] = ()) -> tuple[str, dict[str, str]]:
    classes = classify_nics(snapshot, excluded=excluded)
    return " ".join(one.name for one in classes.compute), {one.name: one.why for one in classes.excluded}


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (nic("b", active=False), "no active port"),
        (nic("b", layer=ROCE), "Ethernet where the fastest NICs speak InfiniBand"),
        (nic("b", layer=OTHER), "neither InfiniBand nor RoCE"),
        (nic("b", rate=100), "slower than another NIC equally near"),
        (replace(nic("b"), is_bond=True), "a bond beside NICs that are none"),
        (replace(nic("b"), physfn="0000:01:00.0"), "a virtual function of a"),
    ],
)
def test_second_nic_at_the_same_switch_is_left_alone(second: Nic, why: str) -> None:
    first = replace(nic("a"), bdf="0000:01:00.0")
    snapshot = node({"a": "PIX PIX", "b": "PIX PIX"}, [first, second])
    assert sorted_out(snapshot) == ("a", {"b": why})


@pytest.mark.parametrize(
    ("distances", "nics", "compute"),
    [
        ({"a": "PIX NODE", "b": "NODE NODE"}, [nic("a"), nic("b")], "a"),
        ({"a": "SYS SYS", "b": "SYS SYS"}, [nic("a"), nic("b")], "a b"),
        ({"a": "PIX NODE", "b": "NODE PIX"}, [nic("a"), nic("b", rate=200)], "a b"),
        ({"a": "PIX PIX", "b": "SYS SYS"}, [nic("a", rate=200), nic("b", layer=ROCE)], "a"),
        ({"a": "PXB NODE", "b": "NODE PXB"}, [replace(nic(n), is_bond=True) for n in "ab"], "a b"),
        ({"a": "PIX PIX", "b": "PIX PIX"}, [replace(nic(n), physfn="0000:01:00.0") for n in "ab"], "a b"),
        ({"a": "PIX PIX", "b": "PIX PIX"}, [nic("a", None), nic("b", None)], "a b"),
        ({"a": "PIX PIX", "b": "PIX PIX"}, [nic("a", layer=OTHER), nic("b", layer=OTHER)], ""),
    ],
    ids=[
        "far ones are for storage",
        "all far: all",
        "a slow rail is a rail",
        "a fast NIC elsewhere decides nothing",
        "bonds, if there is nothing else",
        "virtual functions whose card is hidden",
        "rates not known",
        "a cloud's own transport",
    ],
)
def test_compute_nics(distances: Mapping[str, str], nics: Sequence[Nic], compute: str) -> None:
    assert sorted_out(node(distances, nics))[0] == compute


def test_nic_excluded_by_name() -> None:
    snapshot = node({"a": "PIX PIX", "b": "PIX PIX"})
    assert sorted_out(snapshot, excluded=["a"]) == ("b", {"a": "excluded by name"})


def test_ports_of_one_card_are_storage_beside_one_nic_a_gpu() -> None:
    buses = {"a": "0000:01:00.0", "b": "0001:01:00.0", "c": "0002:01:00.0", "d": "0002:01:00.1"}
    nics = [replace(nic(name), bdf=bdf) for name, bdf in buses.items()]
    far = dict.fromkeys(buses, "SYS SYS")
    assert sorted_out(node(far, nics))[0] == "a b"
    assert sorted_out(node(dict.fromkeys(buses, "SYS SYS SYS"), nics))[0] == "a b c d"


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ({"a": "PIX NODE", "b": "NODE PIX"}, {"g0": "a", "g1": "b"}),
        ({"a": "PIX PIX", "b": "PXB PXB"}, {"g0": "a", "g1": "a"}),
        ({"a": "PIX PIX", "b": "PIX PIX"}, {"g0": "a", "g1": "b"}),
        ({"a": "PIX PIX", "b": "PIX PIX", "c": "PIX PIX", "d": "PIX PIX"}, {"g0": "a b", "g1": "c d"}),
        ({"a": "PIX PIX", "b": "PIX PIX", "c": "PIX PIX"}, {"g0": "a", "g1": "b c"}),
        ({"a": "SYS SYS SYS SYS", "b": "SYS SYS SYS SYS"}, {"g0": "a", "g1": "a", "g2": "b", "g3": "b"}),
        ({"a": "PIX NODE PHB", "b": "NODE NODE PIX"}, {"g0": "a", "g1": "a", "g2": "b"}),
        ({"a": "PIX PIX NODE", "b": "SYS SYS NODE"}, {"g0": "a", "g1": "a", "g2": "b"}),
    ],
    ids=[
        "its own",
        "the nearer one, shared",
        "a tie: one each",
        "two each",
        "three for two",
        "far: in order",
        "a middle one",
        "the idle one",
    ],
)
def test_nics_of_each_gpu(distances: Mapping[str, str], expected: Mapping[str, str]) -> None:
    snapshot = node(distances)
    chosen = choose_nics(snapshot, snapshot.nics, list(expected))
    assert {gpu: " ".join(nics.names) for gpu, nics in chosen.items()} == expected


def test_far_nics_by_distance_of_their_numa_nodes() -> None:
    snapshot = node({"a": "SYS SYS", "b": "SYS SYS"})
    placed = replace(
        snapshot,
        gpus=tuple(replace(gpu, numa_node=1 - i) for i, gpu in enumerate(snapshot.gpus)),
        nics=tuple(replace(one, numa_node=i) for i, one in enumerate(snapshot.nics)),
    )
    chosen = choose_nics(placed, placed.nics, ["g0", "g1"])
    assert {gpu: nics.names for gpu, nics in chosen.items()} == {"g0": ("b",), "g1": ("a",)}


def test_unused_gpus_do_not_take_nics_but_count_for_how_many() -> None:
    snapshot = node({"a": "SYS SYS SYS SYS", "b": "SYS SYS SYS SYS"})
    chosen = choose_nics(snapshot, snapshot.nics, ["g0", "g1"])
    assert {gpu: nics.names for gpu, nics in chosen.items()} == {"g0": ("a",), "g1": ("b",)}


def test_switch_with_more_nics_than_the_others_is_ambiguous() -> None:
    snapshot = node({"a": "PIX NODE", "b": "NODE PIX", "c": "NODE PIX"})
    chosen = choose_nics(snapshot, snapshot.nics, ["g0", "g1"])
    assert {gpu: nics.names for gpu, nics in chosen.items()} == {"g0": ("a",), "g1": ("b",)}
    assert chosen["g0"].warning is None
    assert "2 NICs are PIX to 1 GPUs, others have fewer: each gets 1" in (chosen["g1"].warning or "")
