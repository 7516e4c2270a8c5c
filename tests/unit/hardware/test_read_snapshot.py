"""A node is read from files as it was written, limited by its cgroup, and read on this machine too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tree import write_files, write_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.placement.machines import local_ranks, snapshots

from pipeline.hardware.snapshot import read_snapshot
from pipeline.hardware.topology import Gpu, NodeSnapshot, NumaNode, TopologyError
from pipeline.placement.binding import bind
from pipeline.placement.environment import allowed_before_binding, binding_environment
from pipeline.placement.policy import LocalRank

PLAIN = NodeSnapshot(
    nodes=(NumaNode(id=0, cpus=(0, 1), distances=(10, 20)), NumaNode(id=1, cpus=(2, 3), distances=(20, 10))),
    cores=((0,), (1,), (2,), (3,)),
    allowed=(0, 1, 2, 3),
    mems=(0, 1),
    job_gpus=(),
)
V2 = "36 32 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "36 32 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n37 32 0:31 / /sys/fs/cgroup/u rw - cgroup2 x rw"
CPUSETS: dict[str, dict[str, str]] = {
    "v2": {
        "proc/self/cgroup": "0::/job/step",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/job/step/cpuset.cpus.effective": "2-3",
        "sys/fs/cgroup/job/step/cpuset.mems.effective": "1",
    },
    "v2, only an outer group has a cpuset": {
        "proc/self/cgroup": "0::/job/step",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/job/step/memory.max": "max",
        "sys/fs/cgroup/job/cpuset.cpus.effective": "2-3",
        "sys/fs/cgroup/job/cpuset.mems.effective": "1",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-3",
    },
    "v2 in a container that sees its own group as the root": {
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/cpuset.cpus.effective": "2-3",
        "sys/fs/cgroup/cpuset.mems.effective": "1",
    },
    "v2, a part of the hierarchy is mounted": {
        "proc/self/cgroup": "0::/docker/abc/job",
        "proc/self/mountinfo": V2.replace(" / ", " /docker/abc ", 1),
        "sys/fs/cgroup/job/cpuset.cpus.effective": "2-3",
        "sys/fs/cgroup/job/cpuset.mems.effective": "1",
    },
    "v2, the group lies outside what is mounted": {
        "proc/self/cgroup": "0::/elsewhere",
        "proc/self/mountinfo": V2.replace(" / ", " /docker/abc ", 1),
        "sys/fs/cgroup/cpuset.cpus.effective": "2-3",
        "sys/fs/cgroup/cpuset.mems.effective": "1",
    },
    "v1": {
        "proc/self/cgroup": "4:memory:/x\n3:cpuset:/slurm/job\n0::/y",
        "proc/self/mountinfo": V1,
        "sys/fs/cgroup/cpuset/slurm/job/cpuset.effective_cpus": "2-3",
        "sys/fs/cgroup/cpuset/slurm/job/cpuset.effective_mems": "1",
    },
    "v1 of an old kernel": {
        "proc/self/cgroup": "3:cpuset,cpu:/slurm/job",
        "proc/self/mountinfo": V1,
        "sys/fs/cgroup/cpuset/slurm/job/cpuset.cpus": "2-3",
        "sys/fs/cgroup/cpuset/slurm/job/cpuset.mems": "1",
    },
}


def comparable(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Devices in one order: that of a directory listing is nobody's promise."""
    nics = sorted(snapshot.nics, key=lambda nic: nic.name)
    job_gpus = None if snapshot.job_gpus is None else tuple(sorted(snapshot.job_gpus))
    return replace(snapshot, nics=tuple(nics), job_gpus=job_gpus if snapshot.gpus else ())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(snapshot=snapshots(cores_per_node=3))
def test_snapshot_is_read_as_it_was_written(snapshot: NodeSnapshot) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder), snapshot)
        assert comparable(read_snapshot(root, job_gpus=snapshot.job_gpus)) == comparable(snapshot)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=10)
@given(data=st.data(), snapshot=snapshots(cores_per_node=3))
def test_a_bound_process_plans_the_same_again(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    snapshot = replace(snapshot, mems=tuple(node.id for node in snapshot.nodes))
    ranks = data.draw(local_ranks(snapshot))
    bindings = bind(comparable(snapshot), ranks)
    for binding in bindings[:2]:
        environment = {variable.name: variable.value for variable in binding_environment(binding)}
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(Path(folder), replace(snapshot, allowed=binding.cpus))
            again = read_snapshot(root, allowed=allowed_before_binding(environment), job_gpus=snapshot.job_gpus)
        assert bind(again, ranks) == bindings


@pytest.mark.parametrize("name", CPUSETS)
def test_cpuset_limits_cpus_and_memory(name: str, tmp_path: Path) -> None:
    write_files(write_tree(tmp_path, PLAIN), CPUSETS[name])
    snapshot = read_snapshot(tmp_path)
    assert (snapshot.allowed, snapshot.mems) == ((2, 3), (1,))


@pytest.mark.parametrize(
    ("affinity", "before", "expected"),
    [
        ((3,), None, (3,)),
        ((3,), (2, 3), (2, 3)),
        ((3,), (0, 1, 2, 3), (2, 3)),
        ((3,), (0, 1), (2, 3)),
    ],
    ids=["own affinity", "known from before", "never beyond the cpuset", "left over from another job"],
)
def test_affinity_within_a_cpuset(
    affinity: tuple[int, ...], before: tuple[int, ...] | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    write_files(write_tree(tmp_path, replace(PLAIN, allowed=affinity)), CPUSETS["v2"])
    assert read_snapshot(tmp_path, allowed=before).allowed == expected


def test_kernel_without_numa_is_one_node(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/status": "Cpus_allowed_list:\t0-3",
            "proc/meminfo": "MemTotal:  1024 kB\nMemFree:  512 kB",
            "sys/devices/system/cpu/online": "0-3",
        },
    )
    snapshot = read_snapshot(tmp_path)
    assert snapshot.nodes == (
        NumaNode(id=0, cpus=(0, 1, 2, 3), memory_total_bytes=1024 * 1024, memory_free_bytes=512 * 1024),
    )
    assert snapshot.cores == ((0,), (1,), (2,), (3,))
    assert (snapshot.mems, snapshot.job_gpus) == ((0,), ())


def test_sysfs_hidden_by_a_sandbox(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/self/status": "Cpus_allowed_list:\t4-5"})
    assert read_snapshot(tmp_path).allowed == (4, 5)


def gpu(number: int) -> Gpu:
    bdf = f"0000:{number}0:00.0"
    return Gpu(
        bdf=bdf,
        uuid=f"GPU-{number}",
        name="NVIDIA H200",
        minor=number,
        numa_node=0,
        pci_path=(f"pci0000:{number}0", bdf),
    )


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, None),
        ((), ()),
        (["GPU-2"], ("0000:20:00.0",)),
        (["00000000:10:00.0", "GPU-2"], ("0000:10:00.0", "0000:20:00.0")),
    ],
)
def test_gpus_of_the_job_by_bus_id_or_uuid(
    named: Sequence[str] | None, expected: tuple[str, ...] | None, tmp_path: Path
) -> None:
    root = write_tree(tmp_path, replace(PLAIN, gpus=(gpu(1), gpu(2))))
    snapshot = read_snapshot(root, job_gpus=named)
    assert snapshot.job_gpus == expected
    assert snapshot.gpus == (gpu(1), gpu(2))


@pytest.mark.parametrize("named", ["GPU-7", "0000:70:00.0"])
def test_gpu_that_is_not_here_is_refused(named: str, tmp_path: Path) -> None:
    root = write_tree(tmp_path, replace(PLAIN, gpus=(gpu(1),)))
    with pytest.raises(TopologyError, match=named):
        read_snapshot(root, job_gpus=[named])


@pytest.mark.parametrize(
    "change",
    [{"class": "0x020000"}, {"vendor": "0x1002"}, {"physfn": "x"}],
    ids=["no display class", "another vendor", "virtual function"],
)
def test_what_is_no_gpu(change: dict[str, str], tmp_path: Path) -> None:
    root = write_tree(tmp_path, replace(PLAIN, gpus=(gpu(1),)))
    write_files(root / "sys/bus/pci/devices/0000:10:00.0", change)
    assert read_snapshot(root).gpus == ()


def test_malformed_file_is_named(tmp_path: Path) -> None:
    root = write_tree(tmp_path, PLAIN)
    write_files(root, {"sys/devices/system/node/node1/cpulist": "2-x"})
    with pytest.raises(TopologyError, match=r"node1/cpulist: '2-x' is no list of ids"):
        read_snapshot(root)


def test_this_machine_can_be_read_and_bound() -> None:
    (binding,) = bind(read_snapshot(), [LocalRank(local_rank=0, rank=0)])
    assert set(binding.cpus) <= os.sched_getaffinity(0)
