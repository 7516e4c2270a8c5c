"""Every recorded node gets the binding that was worked out for it by hand."""

from __future__ import annotations

from typing import Any

import pytest
from unit.placement.recorded import NODES, expected_ranks, local_ranks, snapshot_of

from pipeline.hardware.recording import from_document, to_document
from pipeline.hardware.topology import format_ids, parse_ids
from pipeline.placement.binding import Binding, bind, spare_cpus
from pipeline.placement.policy import BindingPolicy, CpuPolicy


def shown(binding: Binding, flags: list[str]) -> dict[str, Any]:
    """A binding in the words of the recordings; flags only where they are not the usual ones."""
    found = [flag.value for flag in binding.flags]
    return {
        "gpu": binding.gpu,
        "home": binding.home,
        "cpus": format_ids(binding.cpus),
        "memory": " ".join((binding.memory.mode.value, *map(str, binding.memory.nodes))),
        "nics": " ".join(binding.nics),
    } | ({} if found == flags else {"flags": found})


@pytest.mark.parametrize("name", NODES)
def test_recorded_node_is_bound_as_worked_out(name: str) -> None:
    expect = NODES[name]["expect"]
    bindings = bind(snapshot_of(name), local_ranks(len(expect["ranks"])))
    wanted = [{**rank, "cpus": str(rank["cpus"])} for rank in expected_ranks(name)]
    assert [shown(binding, expect["flags"]) for binding in bindings] == wanted
    assert {" ".join(binding.compute_nics) for binding in bindings} == {expect["compute_nics"]}


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, policy) for name in NODES for policy in CpuPolicy if policy.value in NODES[name]["expect"]],
)
def test_other_policies_divide_as_worked_out(name: str, policy: CpuPolicy) -> None:
    expect = NODES[name]["expect"]
    bindings = bind(snapshot_of(name), local_ranks(len(expect["ranks"])), BindingPolicy(cpus=policy))
    assert [format_ids(binding.cpus) for binding in bindings] == expect[policy.value]


@pytest.mark.parametrize("name", [name for name, node in NODES.items() if "spare" in node["expect"]])
def test_nodes_without_gpus_are_spare(name: str) -> None:
    snapshot, expect = snapshot_of(name), NODES[name]["expect"]
    bindings = bind(snapshot, local_ranks(len(expect["ranks"])))
    assert spare_cpus(snapshot, bindings) == parse_ids(expect["spare"])


@pytest.mark.parametrize("name", NODES)
def test_recording_survives_a_round_trip(name: str) -> None:
    snapshot = snapshot_of(name)
    again = from_document(to_document(snapshot))
    assert {*again.links} == {*snapshot.links}
    assert to_document(again) == to_document(snapshot)
