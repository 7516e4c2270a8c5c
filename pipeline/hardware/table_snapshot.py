"""A node snapshot from a printed topology table: poorer than sysfs, good enough to replay what people paste."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.hardware.cpu_tables import CpuTable
from pipeline.hardware.tables import TopoGpu, TopoTable
from pipeline.hardware.topology import Gpu, Ids, Nic, NodeSnapshot, NumaNode, TopologyError, format_ids


def snapshot_of_topo(table: TopoTable, cpus: CpuTable | None = None) -> NodeSnapshot:
    """The node as the table shows it: no NIC rates, and without `cpus` only the CPUs near GPUs, no sockets.

    The CPUs printed are those the caller was allowed. Without `cpus`, siblings are told from two ranges of one
    length, as Linux numbers them on x86. Raises TopologyError where nodes can't be told, or where `cpus` is of
    another machine.
    """
    if not any(gpu.cpus for gpu in table.gpus):
        raise TopologyError("nvidia-smi topo: no GPU has a CPU affinity: printed where no CPU near one was allowed")
    return _snapshot(
        table, _cpus_near_gpus(table) if cpus is None else _checked(table, cpus), is_whole=cpus is not None
    )


def snapshot_of_cpus(cpus: CpuTable) -> NodeSnapshot:
    """The node as `lscpu` and `numactl` show it: nothing is known of GPUs and NICs, all CPUs count as allowed."""
    return NodeSnapshot(
        nodes=cpus.nodes,
        cores=cpus.cores,
        packages=cpus.packages,
        allowed=tuple(sorted(cpu for core in cpus.cores for cpu in core)),
        mems=tuple(node.id for node in cpus.nodes if node.memory_total_bytes != 0),
        job_gpus=(),
        untold=("gpus", "nics"),
    )


def _snapshot(table: TopoTable, cpus: CpuTable, *, is_whole: bool) -> NodeSnapshot:
    near = {cpu for gpu in table.gpus for cpu in gpu.cpus}
    homes = {_home_id(gpu) for gpu in table.gpus}
    others = {cpu for node in cpus.nodes if is_whole and node.id not in homes for cpu in node.cpus}
    return NodeSnapshot(
        nodes=cpus.nodes,
        cores=cpus.cores,
        packages=cpus.packages,
        gpus=tuple(_gpu(gpu, cpus.nodes) for gpu in table.gpus),
        nics=tuple(Nic(name=name, is_bond="bond" in name) for name in table.nics),
        allowed=tuple(sorted(near | others)),
        mems=tuple(node.id for node in cpus.nodes if node.cpus),
        job_gpus=tuple(gpu.name for gpu in table.gpus),
        links=table.links,
        # It lists Mellanox' only: none of them is not none at all.
        untold=(*(() if table.nics else ("nics",)), *(() if is_whole else ("cpus",))),
    )


def _checked(table: TopoTable, cpus: CpuTable) -> CpuTable:
    known = {node.id: set(node.cpus) for node in cpus.nodes}
    for gpu in table.gpus:
        home = _home_id(gpu)
        if home is not None and not set(gpu.cpus) <= known.get(home, set()):
            raise TopologyError(
                f"nvidia-smi topo: {gpu.name} is near CPUs {format_ids(gpu.cpus)} of node {home}, lscpu has other ones"
            )
    return cpus


def _cpus_near_gpus(table: TopoTable) -> CpuTable:
    online = range(max(cpu for gpu in table.gpus for cpu in gpu.cpus) + 1)
    cores = _cores(online, _sibling_stride(table.gpus))
    return CpuTable(nodes=_nodes(table, online), cores=tuple(cores), packages=())


def _gpu(gpu: TopoGpu, nodes: Sequence[NumaNode]) -> Gpu:
    node = _home_id(gpu) if nodes else None
    return Gpu(bdf=gpu.name, numa_node=-1 if node is None else node, local_cpus=gpu.cpus or None)


def _home_id(gpu: TopoGpu) -> int | None:
    """Nodes of GPU memory are numbered after those with CPUs."""
    return gpu.numa[0] if gpu.numa else None


def _nodes(table: TopoTable, online: Iterable[int]) -> tuple[NumaNode, ...]:
    """Nodes by the GPUs near them; none where a list of nodes may mean that nothing is known."""
    cpus: dict[int, Ids] = {}
    for gpu in table.gpus:
        home = _home_id(gpu)
        if home is not None and cpus.setdefault(home, gpu.cpus) != gpu.cpus:
            raise TopologyError(
                f"nvidia-smi topo: node {home} has CPUs {format_ids(cpus[home])}, for {gpu.name} {format_ids(gpu.cpus)}"
            )
    if len(cpus) == 1 and _may_be_unknown(table):
        return ()
    cpus = _with_hidden_cpus(cpus, online)
    known = {node for gpu in table.gpus for node in (*(gpu.numa or ()), gpu.memory_node) if node is not None}
    return tuple(NumaNode(id=node, cpus=cpus.get(node, ())) for node in sorted(known))


def _may_be_unknown(table: TopoTable) -> bool:
    """`0-1` for every GPU means any node; `0,2-8` a node and those of GPU memory."""
    listed = {node for gpu in table.gpus for node in gpu.numa or ()}
    has_memory_nodes = any(gpu.memory_node is not None for gpu in table.gpus)
    return len(listed) > 1 and not has_memory_nodes and "," not in format_ids(listed)


def _with_hidden_cpus(cpus: dict[int, Ids], online: Iterable[int]) -> dict[int, Ids]:
    """A node with a blank affinity has CPUs too, only none of them is allowed: those nobody else has."""
    blank = [node for node, found in cpus.items() if not found]
    if not blank:
        return cpus
    taken = {cpu for found in cpus.values() for cpu in found}
    hidden = tuple(cpu for cpu in online if cpu not in taken)
    if len(blank) > 1 or not hidden:
        raise TopologyError(f"nvidia-smi topo: the CPUs of nodes {blank} can't be told: none of them was allowed")
    return {**cpus, blank[0]: hidden}


def _sibling_stride(gpus: Iterable[TopoGpu]) -> int | None:
    """Distance of two siblings: that of two ranges of equal length; None where no GPU has two."""
    strides = set()
    for gpu in gpus:
        half = len(gpu.cpus) // 2
        first, second = gpu.cpus[:half], gpu.cpus[half:]
        if second and first and format_ids(gpu.cpus).count("-") == 2 and _is_shifted(first, second):
            strides.add(second[0] - first[0])
    return strides.pop() if len(strides) == 1 else None


def _is_shifted(first: Sequence[int], second: Sequence[int]) -> bool:
    shift = second[0] - first[0]
    return [cpu + shift for cpu in first] == list(second) and first[-1] + 1 < second[0]


def _cores(online: Sequence[int], stride: int | None) -> list[Ids]:
    if stride is None:
        return [(cpu,) for cpu in online]
    pairs = [tuple(cpu for cpu in (first, first + stride) if cpu in online) for first in online[:stride]]
    return pairs + [(cpu,) for cpu in online[2 * stride :]]
