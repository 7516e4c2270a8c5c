"""Where a rank belongs: the home node of its GPU and the CPUs it may take there (rules R1, R2 and R4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pipeline.hardware.topology import Gpu, Ids, NodeSnapshot, NumaNode, format_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """A place of the node that is near a device."""

    node: int | None
    """NUMA node with CPUs; None: several, or not known."""
    cpus: Ids
    """CPUs that are near, allowed or not."""
    why: str
    known: bool = True
    """False: `cpus` is simply everything."""


@dataclass(frozen=True, slots=True)
class Reach:
    """CPUs a rank may be given, and why they are not those of its home, where they are not."""

    cpus: frozenset[int]
    fallback: str | None = None


def find_home(snapshot: NodeSnapshot, gpu: Gpu) -> Home:
    """The CPUs near a GPU, by what the kernel says of it."""
    node = snapshot.node(gpu.numa_node)
    if node is not None and node.cpus:
        return _home_at(node, f"numa_node of {gpu.bdf} is {node.id}")
    if node is not None and snapshot.cpu_nodes():
        return _nearest_home(snapshot, gpu, node)
    return _home_without_number(snapshot, gpu)


def reach(snapshot: NodeSnapshot, home: Home, allowed: Collection[int]) -> Reach:
    """What of `allowed` a rank with this home may use: home, else its socket, else everything; never empty."""
    near = frozenset(home.cpus) & frozenset(allowed)
    if near:
        return Reach(near)
    node = None if home.node is None else snapshot.node(home.node)
    socket = frozenset(snapshot.socket_cpus(node) if node else ()) & frozenset(allowed)
    missing = f"no CPU of its home ({format_ids(home.cpus)}) is allowed"
    if socket:
        return Reach(socket, f"{missing}: uses its socket")
    return Reach(frozenset(allowed), f"{missing}: uses all allowed CPUs")


def spare_nodes(snapshot: NodeSnapshot) -> tuple[NumaNode, ...]:
    """Nodes with CPUs that no GPU of the machine calls home."""
    homes = [find_home(snapshot, gpu) for gpu in snapshot.gpus]
    taken = {cpu for home in homes if home.known for cpu in home.cpus}
    return tuple(node for node in snapshot.cpu_nodes() if taken.isdisjoint(node.cpus))


def nearest_homes(snapshot: NodeSnapshot, spare: NumaNode, homes: Collection[int]) -> frozenset[int]:
    """Which of these home nodes a spare node is added to: the nearest of its own socket, perhaps none."""
    nodes = [node for home in homes if (node := snapshot.node(home)) is not None]
    same_socket = [node for node in nodes if snapshot.same_socket(spare, node)]
    distances = {node.id: snapshot.node_distance(spare.id, node.id) for node in same_socket}
    return frozenset(node for node, distance in distances.items() if distance == min(distances.values()))


def _home_at(node: NumaNode, why: str) -> Home:
    return Home(node=node.id, cpus=node.cpus, why=why)


def _nearest_home(snapshot: NodeSnapshot, gpu: Gpu, node: NumaNode) -> Home:
    """For GPU memory and CXL nodes, which have no CPUs."""
    local = frozenset(gpu.local_cpus or ())
    nearest = min(
        snapshot.cpu_nodes(),
        key=lambda one: (snapshot.node_distance(node.id, one.id), local.isdisjoint(one.cpus), one.id),
    )
    return _home_at(nearest, f"numa_node of {gpu.bdf} is {node.id}, which has no CPUs; {nearest.id} is nearest")


def _home_without_number(snapshot: NodeSnapshot, gpu: Gpu) -> Home:
    cpu_nodes = snapshot.cpu_nodes()
    unplaced = f"{gpu.bdf} is on no NUMA node (numa_node {gpu.numa_node})"
    if len(cpu_nodes) == 1:
        return _home_at(cpu_nodes[0], f"{unplaced}; the machine has only {cpu_nodes[0].id}")
    local = tuple(cpu for cpu in gpu.local_cpus or () if cpu in snapshot.online)
    if not local or set(local) == set(snapshot.online):
        return Home(node=None, cpus=snapshot.online, why=f"{unplaced} and no CPUs are nearer than others", known=False)
    node = next((one for one in cpu_nodes if set(local) <= set(one.cpus)), None)
    return Home(node=node.id if node else None, cpus=local, why=f"{unplaced}; its local CPUs are {format_ids(local)}")
