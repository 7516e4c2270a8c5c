"""Who sits where: ranks to GPUs by bus id, or to NUMA nodes where there is no GPU (rules R0 and R7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.hardware.topology import Gpu, Ids, NodeSnapshot, NumaNode, TopologyError, device_order
from pipeline.placement.homes import Home, find_home
from pipeline.placement.policy import BindingPolicy, LocalRank


@dataclass(frozen=True, slots=True)
class Seat:
    """What is divided among: a GPU with its ranks, or one rank without a GPU."""

    gpu: Gpu | None
    home: Home
    ranks: tuple[LocalRank, ...]
    """Empty: a GPU of another job, whose part is left alone."""
    why: str


def allowed_cpus(snapshot: NodeSnapshot, rank: LocalRank) -> Ids:
    """Online CPUs the task of this rank may use.

    Raises TopologyError when there is none.
    """
    mask = next((task.cpus for task in snapshot.tasks if task.local_rank == rank.local_rank), snapshot.allowed)
    cpus = tuple(cpu for cpu in snapshot.online if cpu in mask)
    if not cpus:
        raise TopologyError(f"local rank {rank.local_rank} is allowed no CPU that is online")
    return cpus


def seat_ranks(snapshot: NodeSnapshot, ranks: Sequence[LocalRank], policy: BindingPolicy) -> list[Seat]:
    """Gives each rank a GPU, or a place by itself; ranks are in order of their local rank."""
    if not snapshot.gpus or snapshot.job_gpus == ():
        return _seats_by_node(snapshot, ranks)
    if snapshot.job_gpus is None:
        return [_seat_without_knowledge(snapshot, rank) for rank in ranks]
    seats = _seats_by_gpu(snapshot, snapshot.job_gpus, ranks)
    return seats + _seats_of_others(snapshot, seats) if policy.node_is_shared else seats


def _seats_by_gpu(snapshot: NodeSnapshot, job_gpus: Sequence[str], ranks: Sequence[LocalRank]) -> list[Seat]:
    gpus = sorted((gpu for gpu in snapshot.gpus if gpu.bdf in job_gpus), key=lambda gpu: device_order(gpu.bdf))
    seats = []
    for place, gpu in enumerate(gpus):
        here = tuple(rank for rank in ranks if rank.local_rank % len(gpus) == place)
        why = f"GPU {place} of the job's {len(gpus)} by bus id" + (
            f", shared by {len(here)} ranks" if len(here) > 1 else ""
        )
        seats.append(Seat(gpu, find_home(snapshot, gpu), here, why))
    return [seat for seat in seats if seat.ranks]


def _seats_of_others(snapshot: NodeSnapshot, seats: Sequence[Seat]) -> list[Seat]:
    """GPUs without a rank keep their part of a home node that this job was given whole."""
    taken = {seat.gpu.bdf for seat in seats if seat.gpu is not None}
    others = sorted((gpu for gpu in snapshot.gpus if gpu.bdf not in taken), key=lambda gpu: device_order(gpu.bdf))
    empty = [Seat(gpu, find_home(snapshot, gpu), (), "has no rank of this job") for gpu in others]
    return [seat for seat in empty if set(seat.home.cpus) <= set(snapshot.allowed)]


def _seat_without_knowledge(snapshot: NodeSnapshot, rank: LocalRank) -> Seat:
    why = "which GPUs are the job's could not be learnt"
    return Seat(None, Home(node=None, cpus=snapshot.online, why=why, known=False), (rank,), why)


def _seats_by_node(snapshot: NodeSnapshot, ranks: Sequence[LocalRank]) -> list[Seat]:
    """Without GPUs: ranks with the same mask are spread over its nodes."""
    by_mask: dict[Ids, list[LocalRank]] = {}
    for rank in ranks:
        by_mask.setdefault(allowed_cpus(snapshot, rank), []).append(rank)
    seats: list[Seat] = []
    for mask, members in by_mask.items():
        homes = _cpu_homes(snapshot, mask, len(members))
        seats.extend(Seat(None, home, (rank,), "no GPU") for rank, home in zip(members, homes, strict=True))
    return sorted(seats, key=lambda seat: seat.ranks)


def _cpu_homes(snapshot: NodeSnapshot, mask: Ids, count: int) -> list[Home]:
    nodes = [node for node in snapshot.cpu_nodes() if set(node.cpus) & set(mask)]
    if not nodes:
        return [Home(node=None, cpus=mask, why="no NUMA nodes are known")] * count
    if count < len(nodes):
        return [_spanning(nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count]) for i in range(count)]
    node_of_core = [node for node in nodes for core in snapshot.cores if set(core) & set(node.cpus) & set(mask)]
    return [_spanning([node_of_core[i * len(node_of_core) // count]]) for i in range(count)]


def _spanning(nodes: Sequence[NumaNode]) -> Home:
    ids = [node.id for node in nodes]
    cpus = tuple(sorted(cpu for node in nodes for cpu in node.cpus))
    return Home(node=ids[0] if len(ids) == 1 else None, cpus=cpus, why=f"ranks spread evenly over nodes: {ids}")
