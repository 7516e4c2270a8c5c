"""Where a rank's memory should come from: preferred by default, bound only on request and with room (rule R5)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from pipeline.hardware.topology import NodeSnapshot, NumaNode
from pipeline.placement.homes import Home


class MemoryMode(Enum):
    """What the kernel is asked for."""

    none = "none"
    """Nothing: pages come from where the thread runs."""
    preferred = "preferred"
    """Take these nodes first, others before failing."""
    bind = "bind"
    """These nodes or nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPolicy:
    """A memory policy for one process."""

    mode: MemoryMode
    nodes: tuple[int, ...] = ()
    """Nodes with CPUs and memory this job may use, the home first: MPOL_PREFERRED_MANY (Linux 5.15) takes all of
    them, the older MPOL_PREFERRED only the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChoice:
    """A policy and how it came about."""

    policy: MemoryPolicy
    why: str
    warning: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryDemand:
    """What has to fit when hard binding was asked for."""

    bytes_per_rank: int
    ranks: int
    """Ranks that share the home node."""


def choose_memory(
    snapshot: NodeSnapshot, home: Home, *, added: Collection[int], demand: MemoryDemand | None
) -> MemoryChoice:
    """The policy for a rank of this home; `added` are spare nodes whose cores it was given as well.

    `demand` asks for hard binding; None for the default.
    """
    usable = _usable_nodes(snapshot)
    if home.node is None:
        return _for_many_nodes(snapshot, home, usable)
    nodes = _near_nodes(snapshot, home.node, usable, added)
    if not nodes:
        warning = f"memory of node {home.node} and its socket can't be used (allowed: {list(snapshot.mems)})"
        return MemoryChoice(policy=MemoryPolicy(mode=MemoryMode.none), why=warning, warning=warning)
    if home.node not in usable:
        warning = f"memory of home node {home.node} can't be used: takes the nearest of its socket"
        return MemoryChoice(policy=_preferred(nodes), why=warning, warning=warning)
    if demand is None:
        return MemoryChoice(policy=_preferred(nodes), why=f"home node {home.node} first; spills before it fails")
    return _bound(usable[home.node], nodes, added, demand)


def _usable_nodes(snapshot: NodeSnapshot) -> dict[int, NumaNode]:
    """Never a CPU-less node: that would be GPU memory."""
    return {node.id: node for node in snapshot.cpu_nodes() if node.id in snapshot.mems and node.memory_total_bytes != 0}


def _near_nodes(snapshot: NodeSnapshot, home: int, usable: Collection[int], added: Collection[int]) -> tuple[int, ...]:
    node = snapshot.node(home)
    near = [one for one in snapshot.cpu_nodes() if node is not None and snapshot.same_socket(node, one)]
    wanted = [one.id for one in near if not added or one.id == home or one.id in added]
    return tuple(
        sorted((n for n in wanted if n in usable), key=lambda n: (n != home, snapshot.node_distance(home, n), n))
    )


def _for_many_nodes(snapshot: NodeSnapshot, home: Home, usable: dict[int, NumaNode]) -> MemoryChoice:
    nodes = tuple(node_id for node_id, node in usable.items() if set(node.cpus) & set(home.cpus))
    if home.known and nodes and len(nodes) < len(snapshot.cpu_nodes()):
        return MemoryChoice(policy=_preferred(nodes), why=f"near nodes {list(nodes)}")
    why = "no home node" if home.known else "home is not known"
    return MemoryChoice(policy=MemoryPolicy(mode=MemoryMode.none), why=why)


def _preferred(nodes: tuple[int, ...]) -> MemoryPolicy:
    return MemoryPolicy(mode=MemoryMode.preferred if nodes else MemoryMode.none, nodes=nodes)


def _bound(node: NumaNode, nodes: tuple[int, ...], added: Collection[int], demand: MemoryDemand) -> MemoryChoice:
    need = demand.bytes_per_rank * demand.ranks
    if node.memory_free_bytes is not None and node.memory_free_bytes >= need:
        bound = tuple(n for n in nodes if n == node.id or n in added)
        return MemoryChoice(policy=MemoryPolicy(mode=MemoryMode.bind, nodes=bound), why="hard binding was asked for")
    free = "not known" if node.memory_free_bytes is None else f"{node.memory_free_bytes} bytes"
    warning = f"no hard binding: node {node.id} has {free} free, {demand.ranks} ranks need {need} bytes"
    return MemoryChoice(policy=_preferred(nodes), why=warning, warning=warning)
