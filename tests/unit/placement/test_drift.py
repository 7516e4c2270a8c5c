"""What a node is against what its profile expects: surprises are named with both sides, the rest is quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from unit.placement.machines import snapshots
from unit.placement.recorded import snapshot_of

from pipeline.config import load
from pipeline.hardware.topology import Gpu, LinkLayer, Nic, NodeSnapshot, NumaNode, Port
from pipeline.placement.drift import Agreement, compare_with_profile, drift
from pipeline.types import HardwareProfile

MIB, GIB = 1 << 20, 1 << 30


def profile(name: str) -> HardwareProfile:
    return load([f"hardware={name}"]).experiment.hardware


B200, H200, SAKURA = profile("dgx_b200"), profile("dgx_h200"), profile("sakura_phy_b200")


def node(*, numa_nodes: int = 2, gpus: int = 8, nics: int = 8, cores: int = 112, rate: float = 400.0) -> NodeSnapshot:
    """A DGX B200 as its profile has it, or another one."""
    per = cores // numa_nodes
    return NodeSnapshot(
        nodes=tuple(
            NumaNode(id=i, cpus=tuple(range(i * per, (i + 1) * per)), memory_total_bytes=1990 * GIB // numa_nodes)
            for i in range(numa_nodes)
        ),
        cores=tuple((cpu,) for cpu in range(per * numa_nodes)),
        gpus=tuple(
            Gpu(
                bdf=f"0000:{16 * i + 1:02x}:00.0",
                name="NVIDIA B200",
                pci_device_id="2901",
                memory_bytes=183359 * MIB,
                power_limit_watts=1000.0,
                numa_node=i * numa_nodes // gpus,
                pci_path=(f"pci{i}", "sw", "p1", f"0000:{16 * i + 1:02x}:00.0"),
            )
            for i in range(gpus)
        ),
        nics=tuple(
            Nic(
                name=f"mlx5_{i}",
                bdf=f"0000:{16 * i + 2:02x}:00.0",
                numa_node=i * numa_nodes // nics,
                pci_path=(f"pci{i}", "sw", "p2", f"0000:{16 * i + 2:02x}:00.0"),
                ports=(Port(number=1, active=True, rate_gbps=rate, link_layer=LinkLayer.infiniband),),
            )
            for i in range(nics)
        ),
        allowed=tuple(range(per * numa_nodes)),
        mems=tuple(range(numa_nodes)),
    )


def said(expected: HardwareProfile, snapshot: NodeSnapshot) -> list[str]:
    return [str(one) for one in drift(expected, snapshot)]


def with_gpus(snapshot: NodeSnapshot, **changes: object) -> NodeSnapshot:
    return replace(snapshot, gpus=tuple(replace(gpu, **changes) for gpu in snapshot.gpus))  # type: ignore[arg-type]


AS_DELIVERED = node()
SURPRISES = {
    "three NUMA nodes": (node(numa_nodes=3, cores=168), ["NUMA nodes with CPUs: expected 2, found 3",
                                                         "cores: expected 112, found 168"]),
    "six NUMA nodes": (node(numa_nodes=6, cores=114), ["NUMA nodes with CPUs: expected 2, found 6",
                                                       "cores: expected 112, found 114"]),
    "a GPU fell off the bus": (node(gpus=7), ["GPUs: expected 8, found 7", "compute NICs: expected 8, found 7"]),
    "a NIC is down": (replace(AS_DELIVERED, nics=(
        replace(AS_DELIVERED.nics[0], ports=(Port(number=1, active=False, rate_gbps=None,
                                                  link_layer=LinkLayer.infiniband),)),
        *AS_DELIVERED.nics[1:])), ["compute NICs: expected 8, found 7"]),
    "slower links": (node(rate=200.0), ["NIC rate: expected 400 Gbit/s, found 200 Gbit/s"]),
    "another GPU": (with_gpus(AS_DELIVERED, name="NVIDIA B300 SXM6 AC", pci_device_id="3182",
                              memory_bytes=275040 * MIB),
                    ["GPU: expected NVIDIA B200, found NVIDIA B300 SXM6 AC",
                     "GPU device id: expected 2901, found 3182",
                     "GPU memory: expected 183359 MiB, found 275040 MiB"]),
    "power set point": (with_gpus(AS_DELIVERED, power_limit_watts=700.0),
                        ["GPU power limit: expected 1000 W, found 700 W"]),
    "one GPU capped": (replace(AS_DELIVERED, gpus=(replace(AS_DELIVERED.gpus[0], power_limit_watts=400.0),
                                                   *AS_DELIVERED.gpus[1:])),
                       ["GPU power limit: expected 1000 W, found 400, 1000 W"]),
    "half of the memory": (replace(AS_DELIVERED, nodes=tuple(
        replace(one, memory_total_bytes=512 * GIB) for one in AS_DELIVERED.nodes)),
        ["host memory: expected 2048 GiB, found 1024 GiB"]),
}  # fmt: skip


def test_a_node_as_delivered_does_not_differ() -> None:
    assert said(B200, AS_DELIVERED) == []
    states = {row.agreement for row in compare_with_profile(B200, AS_DELIVERED)}
    assert states == {Agreement.same, Agreement.not_expected}


@pytest.mark.parametrize(("found", "differences"), SURPRISES.values(), ids=SURPRISES)
def test_surprises_are_named_with_both_sides(found: NodeSnapshot, differences: list[str]) -> None:
    assert said(B200, found) == differences


@pytest.mark.parametrize(("numa_nodes", "is_expected"), [(3, True), (6, True), (2, False), (1, False), (4, False)])
def test_alternatives_are_all_as_expected(numa_nodes: int, is_expected: bool) -> None:
    """Sakura's three NUMA nodes: per node or per socket is not settled."""
    found = said(SAKURA, node(numa_nodes=numa_nodes, cores=120))
    assert found == ([] if is_expected else [f"NUMA nodes with CPUs: expected 3 or 6, found {numa_nodes}"])


def test_recorded_b200_nodes_surprise_a_profile_of_two() -> None:
    for name, count in (("b200x8-3numa", 3), ("b200x8-6numa", 6)):
        assert f"NUMA nodes with CPUs: expected 2, found {count}" in said(B200, snapshot_of(name))


def test_what_a_node_does_not_say_is_no_drift() -> None:
    """A container without a driver, a table without links, lscpu alone."""
    bare = with_gpus(AS_DELIVERED, name=None, pci_device_id=None, memory_bytes=None, power_limit_watts=None)
    assert said(B200, bare) == []
    rows = {row.what: row for row in compare_with_profile(B200, bare)}
    assert (rows["GPU"].found, rows["GPU"].agreement) == ("unknown", Agreement.not_found)
    cpus_only = replace(AS_DELIVERED, gpus=(), nics=(), untold=("gpus", "nics"))
    assert said(B200, cpus_only) == []
    near_gpus_only = replace(node(numa_nodes=4, cores=64), untold=("cpus",))
    assert said(B200, near_gpus_only) == ["host memory: expected 2048 GiB, found 1990 GiB"][1:]


def test_a_profile_without_gpus_expects_none() -> None:
    assert said(profile("laptop"), AS_DELIVERED) == []


def test_adapters_of_a_cloud_are_counted_though_their_plugin_chooses() -> None:
    efa = tuple(
        replace(nic, ports=(Port(number=1, active=True, rate_gbps=400.0, link_layer=LinkLayer.unspecified),))
        for nic in AS_DELIVERED.nics
    )
    rows = {row.what: row for row in compare_with_profile(B200, replace(AS_DELIVERED, nics=efa))}
    assert (rows["compute NICs"].found, rows["NIC rate"].agreement) == ("8", Agreement.same)


def test_excluded_nics_are_not_counted_and_have_to_be_there() -> None:
    for name in ("mlx5_3", AS_DELIVERED.nics[5].bdf or ""):
        spec = replace(B200.node_spec, excluded_nics=[name], nics_per_node=[7])
        assert said(replace(B200, node_spec=spec), AS_DELIVERED) == []
    typo = replace(B200.node_spec, excluded_nics=["mlx5_33"])
    assert said(replace(B200, node_spec=typo), AS_DELIVERED) == ["excluded NICs: expected mlx5_33, found no mlx5_33"]


def test_gpu_memory_is_compared_with_some_tolerance() -> None:
    """143771 MiB is what an H200 showed; a driver may keep a little more for itself."""
    h200 = Gpu(bdf="0000:01:00.0", name="NVIDIA H200", pci_device_id="2335", memory_bytes=143771 * MIB)
    for memory, count in ((143771, 0), (143156, 0), (97871, 1)):
        found = said(H200, replace(AS_DELIVERED, gpus=(replace(h200, memory_bytes=memory * MIB),)))
        assert sum("GPU memory" in one for one in found) == count


@given(snapshots())
def test_any_node_can_be_compared(snapshot: NodeSnapshot) -> None:
    rows = compare_with_profile(B200, snapshot)
    assert len({row.what for row in rows}) == len(rows)
    for row in rows:
        assert (row.agreement is Agreement.not_found) == (row.found == "unknown")
        assert (row.agreement is Agreement.not_expected) == (row.expected == "unknown")
