"""Nodes are sorted into kinds by what they are, not by what a moment or a job makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.placement.machines import snapshots
from unit.placement.recorded import NODES, snapshot_of

from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.unlike_nodes import facts, kinds_of

NODE = snapshot_of("azure-ndv5")
GIB = 1 << 30


def with_memory(snapshot: NodeSnapshot, total: int, free: int) -> NodeSnapshot:
    """Every NUMA node with this much memory, bytes."""
    nodes = (replace(node, memory_total_bytes=total, memory_free_bytes=free) for node in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def without_last_gpu(snapshot: NodeSnapshot) -> NodeSnapshot:
    """One GPU less, as when it fell off the bus."""
    return replace(snapshot, gpus=snapshot.gpus[:-1], job_gpus=None, links=())


def test_the_kind_of_most_nodes_comes_first_and_the_others_say_where_they_differ() -> None:
    kinds = kinds_of({"n1": without_last_gpu(NODE), "n2": NODE, "n3": NODE})
    assert kinds.nodes == (("n2", "n3"), ("n1",))
    found = {row.what: row.values for row in kinds.differences}
    assert found["GPUs"][0].startswith("8 x ")
    assert found["GPUs"][1].startswith("7 x ")
    assert "CPUs" not in found


@pytest.mark.parametrize("name", sorted(NODES))
def test_nodes_that_are_one_are_alike(name: str) -> None:
    kinds = kinds_of({"a": snapshot_of(name), "b": snapshot_of(name)})
    assert (kinds.nodes, kinds.differences) == ((("a", "b"),), ())


def test_free_memory_a_job_share_and_serial_numbers_make_no_kind() -> None:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.bdf}") for gpu in NODE.gpus)
    other = replace(with_memory(NODE, 512 * GIB, GIB), gpus=gpus, allowed=NODE.allowed[:1], mems=NODE.mems[:1])
    assert len(kinds_of({"a": with_memory(NODE, 512 * GIB, 500 * GIB), "b": other}).nodes) == 1


@pytest.mark.parametrize(("total", "kinds"), [(512 * GIB, 1), (512 * GIB + GIB // 8, 1), (448 * GIB, 2)])
def test_a_missing_memory_module_makes_a_kind_and_a_few_pages_do_not(total: int, kinds: int) -> None:
    found = kinds_of({"a": with_memory(NODE, 512 * GIB, 0), "b": with_memory(NODE, total, 0)})
    assert len(found.nodes) == kinds


def test_without_nodes_there_are_no_kinds() -> None:
    assert kinds_of({}).nodes == ()


@settings(max_examples=25, deadline=None)
@given(st.lists(snapshots(), min_size=1, max_size=4))
def test_every_node_is_of_one_kind_and_kinds_differ_in_what_is_listed(nodes: list[NodeSnapshot]) -> None:
    named = {f"n{number}": node for number, node in enumerate(nodes)}
    kinds = kinds_of(named)
    assert sorted(name for names in kinds.nodes for name in names) == sorted(named)
    for names, *others in zip(kinds.nodes, *(row.values for row in kinds.differences), strict=True):
        assert all(
            facts(named[name])[row.what] == value
            for name in names
            for row, value in zip(kinds.differences, others, strict=True)
        )
    assert bool(kinds.differences) == (len(kinds.nodes) > 1)
