"""Takes the snapshot of a node from sysfs, procfs and its cgroup, of this machine or of a recorded one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.hardware.cpuset import allowance_of_cgroup, allowance_of_status
from pipeline.hardware.devices import read_gpus, read_nics
from pipeline.hardware.nvml import NvmlReading, with_nvml
from pipeline.hardware.topology import Gpu, Ids, NodeSnapshot, NumaNode, TaskMask, normalize_bdf
from pipeline.hardware.tree import Tree

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"


def read_snapshot(
    root: Path = Path("/"),
    *,
    allowed: Ids | None = None,
    tasks: Sequence[TaskMask] = (),
    job_gpus: Sequence[str] | None = None,
    nvml: NvmlReading | None = None,
) -> NodeSnapshot:
    """The node as the kernel shows it below `root`.

    `allowed` replaces this process' own affinity (a bound process knows what it was allowed before); the cpuset
    limits it all the same. `job_gpus` names this job's GPUs by bus id or UUID; None: could not be learnt.
    `nvml` is what the driver of that machine tells; None: it wasn't asked.
    Raises TopologyError when files contradict each other or a named GPU isn't here.
    """
    tree = Tree(root)
    status, cgroup = allowance_of_status(tree), allowance_of_cgroup(tree)
    online = tree.ids(f"{_CPU}/online") or status.cpus or ()
    nodes = _read_nodes(tree, online)
    gpus = read_gpus(tree) if nvml is None else with_nvml(read_gpus(tree), nvml)
    return NodeSnapshot(
        nodes=nodes,
        cores=_groups(online, (tree.ids(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") for cpu in online)),
        packages=_packages(tree, online),
        l3_groups=_last_level_caches(tree, online),
        gpus=gpus,
        nics=read_nics(tree),
        allowed=_limited(online, cgroup.cpus, status.cpus if allowed is None else allowed),
        mems=_limited(tuple(node.id for node in nodes), cgroup.mems, status.mems),
        tasks=tuple(tasks),
        job_gpus=_job_gpus(gpus, job_gpus),
        driver=(nvml.driver if nvml else None) or tree.text("sys/module/nvidia/version"),
    )


def _limited(known: Ids, *limits: Ids | None) -> Ids:
    """What the limits leave, the strongest first; a weaker one that would leave nothing is out of date."""
    for limit in limits:
        if limit is not None:
            known = tuple(one for one in known if one in limit) or known
    return known


def _job_gpus(gpus: Sequence[Gpu], wanted: Sequence[str] | None) -> tuple[str, ...] | None:
    if wanted is None:
        return None if gpus else ()
    by_uuid = {gpu.uuid: gpu.bdf for gpu in gpus}
    return tuple(by_uuid.get(name) or normalize_bdf(name) for name in wanted)


def _read_nodes(tree: Tree, online: Ids) -> tuple[NumaNode, ...]:
    """A kernel without NUMA is one node."""
    ids = tree.ids(f"{_NODE}/online")
    if not ids:
        total, free = _memory(tree.text("proc/meminfo"))
        return (NumaNode(id=0, cpus=online, memory_total_bytes=total, memory_free_bytes=free),)
    return tuple(_read_node(tree, node, count=len(ids)) for node in ids)


def _read_node(tree: Tree, node: int, *, count: int) -> NumaNode:
    folder = f"{_NODE}/node{node}"
    total, free = _memory(tree.text(f"{folder}/meminfo"))
    distances = tuple(int(number) for number in (tree.text(f"{folder}/distance") or "").split())
    return NumaNode(
        id=node,
        cpus=tree.ids(f"{folder}/cpulist") or (),
        memory_total_bytes=total,
        memory_free_bytes=free,
        distances=distances if len(distances) == count else (),
    )


def _memory(meminfo: str | None) -> tuple[int | None, int | None]:
    """Total and free bytes, from lines like `Node 0 MemTotal: 65536 kB`."""
    found = dict(re.findall(r"\b(MemTotal|MemFree):\s+(\d+) kB", meminfo or ""))
    total, free = (int(found[key]) * 1024 if key in found else None for key in ("MemTotal", "MemFree"))
    return total, free


def _packages(tree: Tree, online: Ids) -> tuple[Ids, ...]:
    cpus: dict[int, list[int]] = {}
    for cpu in online:
        package = tree.number(f"{_CPU}/cpu{cpu}/topology/physical_package_id")
        if package is None or package < 0:
            return ()
        cpus.setdefault(package, []).append(cpu)
    return tuple(tuple(cpus[package]) for package in sorted(cpus))


def _last_level_caches(tree: Tree, online: Ids) -> tuple[Ids, ...]:
    lists = [_cache_cpus(tree, cpu) for cpu in online]
    return () if None in lists else _groups(online, lists)


def _cache_cpus(tree: Tree, cpu: int) -> Ids | None:
    folder = f"{_CPU}/cpu{cpu}/cache"
    index = next((name for name in tree.names(folder) if tree.number(f"{folder}/{name}/level") == 3), None)
    return None if index is None else tree.ids(f"{folder}/{index}/shared_cpu_list")


def _groups(online: Ids, lists: Iterable[Ids | None]) -> tuple[Ids, ...]:
    """Each CPU once, with those that are listed with it."""
    left = set(online)
    groups: list[Ids] = []
    for cpu, listed in zip(online, lists, strict=True):
        if cpu in left:
            group = tuple(sorted({cpu, *(listed or ())} & left))
            groups.append(group)
            left.difference_update(group)
    return tuple(groups)
