"""Nodes against each other: what each is in a few facts, which of them are alike, and where the others differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.hardware.topology import Nic, NodeSnapshot, Port, format_ids
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
    gpus, nics = snapshot.gpus, snapshot.nics
    return {
        "CPUs": format_ids(snapshot.online),
        "cores": str(len(snapshot.cores)),
        "sockets": " | ".join(map(format_ids, snapshot.packages)) or _UNKNOWN,
        "last-level caches": str(len(snapshot.l3_groups)) if snapshot.l3_groups else _UNKNOWN,
        "NUMA nodes": " | ".join(f"{node.id}: {format_ids(node.cpus) or 'no CPUs'}" for node in snapshot.nodes),
        "memory": " | ".join(_memory(node.memory_total_bytes) for node in snapshot.nodes),
        "distances": " | ".join(" ".join(map(str, node.distances)) or _UNKNOWN for node in snapshot.nodes),
        "GPUs": ", ".join(_counted(gpu.name or _UNKNOWN for gpu in gpus)) or "none",
        "GPU memory": ", ".join(_counted(_mib(gpu.memory_bytes) for gpu in gpus)) or "none",
        "GPU power limit": ", ".join(_counted(_watts(gpu.power_limit_watts) for gpu in gpus)) or "none",
        "GPU driver": snapshot.driver or _UNKNOWN,
        "GPU bus ids": " ".join(gpu.bdf for gpu in gpus) or "none",
        "NUMA node of each GPU": " ".join(str(gpu.numa_node) for gpu in gpus) or "none",
        "NICs": " ".join(nic.name for nic in nics) or "none",
        "NUMA node of each NIC": " ".join(str(nic.numa_node) for nic in nics) or "none",
        "ports": ", ".join(_counted(_port(port) for nic in nics for port in nic.ports or ())) or _UNKNOWN,
        "NICs that are down": " ".join(nic.name for nic in nics if _is_down(nic)) or "none",
        "NICs for training": " ".join(nic.name for nic in classify_nics(snapshot).compute) or "none",
        "nearest of them": _nearest(snapshot) or "none",
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


def _mib(size: int | None) -> str:
    return _UNKNOWN if size is None else f"{size >> 20} MiB"


def _watts(limit: float | None) -> str:
    return _UNKNOWN if limit is None else f"{limit:g} W"


def _port(port: Port) -> str:
    rate = "" if port.rate_gbps is None else f" {port.rate_gbps:g} Gb/s"
    return f"{port.link_layer.value}{rate}{'' if port.active else ' down'}"


def _is_down(nic: Nic) -> bool:
    return bool(nic.ports) and not any(port.active for port in nic.ports or ())


def _counted(names: Iterable[str]) -> list[str]:
    return [f"{count} x {name}" for name, count in sorted(Counter(names).items())]


def _nearest(snapshot: NodeSnapshot) -> str:
    """How far each GPU is from the nearest NIC for training, in the order of the bus."""
    compute = classify_nics(snapshot).compute
    if not compute:
        return ""
    return " ".join(min(snapshot.device_distance(gpu, nic) for nic in compute).name for gpu in snapshot.gpus)
