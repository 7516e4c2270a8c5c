"""Divides the cores of a node among the seats and within a seat among its ranks (rules R2 to R4 and R6 to R8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.hardware.topology import NodeSnapshot, NumaNode
from pipeline.placement.cores import Piece, deal_cores, split_cores, without_half_cores
from pipeline.placement.homes import nearest_homes, reach, spare_nodes
from pipeline.placement.policy import CpuPolicy, LocalRank
from pipeline.placement.seats import Seat, allowed_cpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The cores of one rank."""

    pieces: tuple[Piece, ...]
    added_nodes: tuple[int, ...] = ()
    """GPU-less nodes of which it got cores as well."""
    fallback: str | None = None
    """Why these are not cores of its home."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """All its CPUs, ascending."""
        return tuple(sorted(cpu for piece in self.pieces for cpu in piece))


Shares = Mapping[LocalRank, Share]


def share_cores(snapshot: NodeSnapshot, seats: Sequence[Seat], policy: CpuPolicy) -> Shares:
    """The cores of every rank; never none, never a CPU its task is not allowed."""
    wants = _wants(snapshot, seats)
    shares = _split_homes(snapshot, seats, wants)
    match policy:
        case CpuPolicy.spread:
            return _add_spares(snapshot, seats, shares)
        case CpuPolicy.equalize:
            return _equalized(shares)
        case CpuPolicy.strict | CpuPolicy.none:
            return shares


@dataclass(frozen=True, slots=True)
class _Wants:
    """What each rank, and each seat as a whole, may have."""

    of_rank: Mapping[LocalRank, frozenset[int]]
    fallback: Mapping[LocalRank, str | None]
    of_seat: Sequence[frozenset[int]]


def _wants(snapshot: NodeSnapshot, seats: Sequence[Seat]) -> _Wants:
    job = job_cpus(snapshot, [rank for seat in seats for rank in seat.ranks])
    of_rank: dict[LocalRank, frozenset[int]] = {}
    fallback: dict[LocalRank, str | None] = {}
    for seat in seats:
        for rank in seat.ranks:
            reached = reach(snapshot, seat.home, allowed_cpus(snapshot, rank))
            of_rank[rank] = without_half_cores(snapshot.cores, reached.cpus, job)
            fallback[rank] = reached.fallback
    return _Wants(of_rank, fallback, [_wants_of_seat(snapshot, seat, of_rank, job) for seat in seats])


def job_cpus(snapshot: NodeSnapshot, ranks: Sequence[LocalRank]) -> frozenset[int]:
    """What the tasks of these ranks may use, taken together."""
    return frozenset(cpu for rank in ranks for cpu in allowed_cpus(snapshot, rank))


def _wants_of_seat(
    snapshot: NodeSnapshot, seat: Seat, of_rank: Mapping[LocalRank, frozenset[int]], job: frozenset[int]
) -> frozenset[int]:
    if not seat.ranks:
        return without_half_cores(snapshot.cores, job & frozenset(seat.home.cpus), job)
    return frozenset(cpu for rank in seat.ranks for cpu in of_rank[rank])


def _split_homes(snapshot: NodeSnapshot, seats: Sequence[Seat], wants: _Wants) -> dict[LocalRank, Share]:
    shares: dict[LocalRank, Share] = {}
    for seat, pieces in zip(seats, split_cores(snapshot.cores, snapshot.l3_groups, wants.of_seat), strict=True):
        for rank, part in _within_seat(snapshot, seat, pieces, wants.of_rank).items():
            shares[rank] = Share(pieces=tuple(part), fallback=wants.fallback[rank])
    return shares


def _within_seat(
    snapshot: NodeSnapshot, seat: Seat, pieces: Sequence[Piece], wants: Mapping[LocalRank, frozenset[int]]
) -> dict[LocalRank, list[Piece]]:
    """A rank whose mask has nothing of its seat's part shares what its mask does have."""
    parts = split_cores(pieces, snapshot.l3_groups, [wants[rank] for rank in seat.ranks])
    return {
        rank: part or split_cores(snapshot.cores, (), [wants[rank]])[0]
        for rank, part in zip(seat.ranks, parts, strict=True)
    }


def _add_spares(snapshot: NodeSnapshot, seats: Sequence[Seat], shares: Shares) -> Shares:
    for spare in spare_nodes(snapshot):
        near = nearest_homes(snapshot, spare, {seat.home.node for seat in seats if seat.home.node is not None})
        receivers = [seat for seat in seats if seat.home.node in near]
        shares = {**shares, **_with_spare(snapshot, spare, receivers, shares)}
    return shares


def _with_spare(
    snapshot: NodeSnapshot, spare: NumaNode, receivers: Sequence[Seat], shares: Shares
) -> dict[LocalRank, Share]:
    """Equal parts of the spare node for each seat; odd cores go to those with fewest."""
    taken = {cpu for share in shares.values() for cpu in share.cpus}
    job = job_cpus(snapshot, list(shares))
    free = without_half_cores(snapshot.cores, (job & frozenset(spare.cpus)) - taken, job)
    poorest_first = sorted(receivers, key=lambda seat: sum(len(shares[rank].pieces) for rank in seat.ranks))
    parts = deal_cores(snapshot.cores, snapshot.l3_groups, [_free_for(snapshot, seat, free) for seat in poorest_first])
    return {
        rank: _enriched(shares[rank], pieces, spare)
        for seat, part in zip(poorest_first, parts, strict=True)
        for rank, pieces in _dealt_within(snapshot, seat, part, shares).items()
        if pieces
    }


def _free_for(snapshot: NodeSnapshot, seat: Seat, free: frozenset[int]) -> frozenset[int]:
    return free & job_cpus(snapshot, seat.ranks) if seat.ranks else free


def _dealt_within(
    snapshot: NodeSnapshot, seat: Seat, part: Sequence[Piece], shares: Shares
) -> dict[LocalRank, list[Piece]]:
    poorest_first = sorted(seat.ranks, key=lambda rank: (len(shares[rank].pieces), rank))
    dealt = deal_cores(part, (), [allowed_cpus(snapshot, rank) for rank in poorest_first])
    return dict(zip(poorest_first, dealt, strict=True))


def _enriched(share: Share, pieces: Sequence[Piece], spare: NumaNode) -> Share:
    return replace(share, pieces=(*share.pieces, *pieces), added_nodes=(*share.added_nodes, spare.id))


def _equalized(shares: Shares) -> Shares:
    least = min((len(share.pieces) for share in shares.values()), default=0)
    return {rank: replace(share, pieces=share.pieces[:least]) for rank, share in shares.items()}
