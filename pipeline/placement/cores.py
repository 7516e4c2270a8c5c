"""Who gets which cores: whole physical cores, dealt out evenly and in order (rules R3 and R6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

Piece = tuple[int, ...]
"""What one consumer can have of one physical core: all its usable CPUs together."""


@dataclass(frozen=True, slots=True)
class _Class:
    """The pieces that exactly these consumers may have."""

    members: tuple[int, ...]
    pieces: list[Piece]


def without_half_cores(cores: Sequence[Piece], cpus: Collection[int], allowed: Collection[int]) -> frozenset[int]:
    """`cpus` without those whose sibling is online but not for this job (isolated, or somebody else's).

    Where half cores are not the exception (one thread a core was allocated), nothing is dropped.
    """
    touched = [core for core in cores if not set(core).isdisjoint(cpus)]
    broken = [core for core in touched if not set(core) <= set(allowed)]
    if 2 * len(broken) >= len(touched):
        return frozenset(cpus)
    return frozenset(cpus) - {cpu for core in broken for cpu in core}


def split_cores(
    cores: Sequence[Piece], l3_groups: Sequence[Piece], wants: Sequence[Collection[int]]
) -> list[list[Piece]]:
    """As `deal_cores`, but with more consumers than cores these are shared in turn.

    Only a consumer that wants nothing gets nothing.
    """
    shares = deal_cores(cores, l3_groups, wants)
    _share_where_none_is_left(shares, _classes(cores, wants))
    return shares


def deal_cores(
    cores: Sequence[Piece], l3_groups: Sequence[Piece], wants: Sequence[Collection[int]]
) -> list[list[Piece]]:
    """Deals cores to consumers, each of which may only have CPUs of its own `wants`.

    Consumers with equal wants get shares whose sizes differ by at most one, contiguous in core order, along
    last-level caches where these divide evenly. No core goes to two consumers; the first ones get the odd cores.
    """
    shares: list[list[Piece]] = [[] for _ in wants]
    for one in sorted(_classes(cores, wants), key=lambda one: (len(one.members), one.members)):
        for member, pieces in zip(one.members, _deal(one, shares, l3_groups), strict=True):
            shares[member].extend(pieces)
    return shares


def _classes(cores: Sequence[Piece], wants: Sequence[Collection[int]]) -> list[_Class]:
    members_of = {cpu: tuple(i for i, want in enumerate(wants) if cpu in want) for core in cores for cpu in core}
    pieces: dict[tuple[int, ...], list[Piece]] = {}
    for core in cores:
        for members in dict.fromkeys(members_of[cpu] for cpu in core):
            piece = tuple(cpu for cpu in core if members_of[cpu] == members)
            pieces.setdefault(members, []).append(piece)
    return [_Class(members, found) for members, found in pieces.items() if members]


def _deal(one: _Class, shares: Sequence[list[Piece]], l3_groups: Sequence[Piece]) -> list[list[Piece]]:
    loads = [len(shares[member]) for member in one.members]
    aligned = None if any(loads) else _whole_caches(one, l3_groups)
    if aligned is not None:
        return aligned
    dealt, start = [], 0
    for quota in _level(len(one.pieces), loads):
        dealt.append(one.pieces[start : start + quota])
        start += quota
    return dealt


def _whole_caches(one: _Class, l3_groups: Sequence[Piece]) -> list[list[Piece]] | None:
    """Shares of whole caches, or None where that would be uneven."""
    caches = [[piece for piece in one.pieces if piece[0] in group] for group in l3_groups]
    caches = [cache for cache in caches if cache]
    count = len(one.members)
    if sum(map(len, caches)) != len(one.pieces) or len(caches) % count:
        return None
    each = len(caches) // count
    shares = [[piece for cache in caches[i * each : (i + 1) * each] for piece in cache] for i in range(count)]
    sizes = [len(share) for share in shares]
    return shares if max(sizes) - min(sizes) <= 1 else None


def _level(count: int, loads: Sequence[int]) -> list[int]:
    """How many of `count` things each gets so that the totals come out as even as they can."""
    quotas = [0] * len(loads)
    for _ in range(count):
        poorest = min(range(len(loads)), key=lambda i: (loads[i] + quotas[i], i))
        quotas[poorest] += 1
    return quotas


def _share_where_none_is_left(shares: Sequence[list[Piece]], classes: Sequence[_Class]) -> None:
    users = {piece: sum(piece in share for share in shares) for one in classes for piece in one.pieces}
    for consumer, share in enumerate(shares):
        usable = [piece for one in classes if consumer in one.members for piece in one.pieces]
        if usable and not share:
            least_used = min(usable, key=lambda piece: (users[piece], piece))
            share.append(least_used)
            users[least_used] += 1
