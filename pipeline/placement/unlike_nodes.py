"""Nodes against each other: what each is in a few facts, which of them are alike, and where the others differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.hardware.topology import Gpu, Nic, NodeSnapshot, format_ids
from pipeline.placement.nics import classify_nics

_GIB = 1 << 30
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One fact in which nodes differ."""

    what: str
    values: tuple[str, ...]
    """One for each kind of node, in the order of the kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """Nodes sorted by what they are."""

    nodes: tuple[tuple[str, ...], ...]
    """Names of the nodes of each kind, the kind of most nodes first."""
    differences: tuple[Difference, ...]
    """Empty where all nodes are of one kind."""


def facts(snapshot: NodeSnapshot) -> dict[str, str]:
    """What makes a node what it is, for people: no serial numbers, no free memory, nothing that a job takes away."""
    return {
        "CPUs": format_ids(snapshot.online),
        "cores": str(len(snapshot.cores)),
        "sockets": " | ".join(map(format_ids, snapshot.packages)) or _UNKNOWN,
        "last-level caches": str(len(snapshot.l3_groups)) if snapshot.l3_groups else _UNKNOWN,
        "NUMA nodes": " | ".join(f"{node.id}: {format_ids(node.cpus) or 'no CPUs'}" for node in snapshot.nodes),
        "memory of each": " ".join(_memory(node.memory_total_bytes) for node in snapshot.nodes),
        "distances": " | ".join(" ".join(map(str, node.distances)) or _UNKNOWN for node in snapshot.nodes),
        "GPUs": ", ".join(sorted({gpu.name or _UNKNOWN for gpu in snapshot.gpus})) or "none",
        "GPU on NUMA node": " ".join(_gpu(gpu) for gpu in snapshot.gpus) or "none",
        "compute NICs": " ".join(nic.name for nic in classify_nics(snapshot).compute) or "none",
        "NIC on NUMA node": " ".join(f"{nic.name}:{nic.numa_node}" for nic in snapshot.nics) or "none",
        "ports": " ".join(_ports(nic) for nic in snapshot.nics) or "none",
        "nearest NICs": _nearest(snapshot) or "none",
    }


def kinds_of(snapshots: Mapping[str, NodeSnapshot]) -> Kinds:
    """Sorts named nodes into kinds; memory is compared in steps of a percent."""
    found = {name: facts(snapshot) for name, snapshot in snapshots.items()}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, about in found.items():
        groups.setdefault(tuple(about.values()), []).append(name)
    nodes = tuple(tuple(names) for names in sorted(groups.values(), key=lambda names: (-len(names), names)))
    examples = [found[names[0]] for names in nodes]
    return Kinds(nodes=nodes, differences=_differences(examples))


def _differences(examples: Sequence[Mapping[str, str]]) -> tuple[Difference, ...]:
    names = examples[0] if examples else {}
    rows = (Difference(what=what, values=tuple(example[what] for example in examples)) for what in names)
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _memory(size: int | None) -> str:
    """Two nodes of one kind differ by what their firmware keeps: three digits are compared."""
    return _UNKNOWN if size is None else f"{float(f'{size / _GIB:.3g}'):g} GiB"


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.bdf}:{gpu.numa_node}"


def _ports(nic: Nic) -> str:
    ports = ",".join(
        f"{'' if port.rate_gbps is None else f'{port.rate_gbps:g} '}{port.link_layer.value}"
        f"{'' if port.active else ' DOWN'}"
        for port in nic.ports or ()
    )
    return f"{nic.name}({ports or _UNKNOWN})"


def _nearest(snapshot: NodeSnapshot) -> str:
    """How far each GPU is from the nearest NIC for training."""
    compute = classify_nics(snapshot).compute
    if not compute:
        return ""
    return " ".join(min(snapshot.device_distance(gpu, nic) for nic in compute).name for gpu in snapshot.gpus)
