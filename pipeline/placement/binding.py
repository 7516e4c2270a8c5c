"""Where each rank of a node belongs: GPU, CPUs, memory and NICs, as one pure function of one snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.hardware.topology import Ids, NodeSnapshot, TopologyError, format_ids
from pipeline.placement.memory import MemoryChoice, MemoryDemand, MemoryMode, MemoryPolicy, choose_memory
from pipeline.placement.nics import NicClasses, classify_nics
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank
from pipeline.placement.rails import GpuNics, choose_nics
from pipeline.placement.seats import Seat, allowed_cpus, seat_ranks
from pipeline.placement.shares import Share, Shares, share_cores
from pipeline.types import Reason

FEW_CORES = 4
"""Fewer starve the data loading beside a rank."""


class BindingFlag(Enum):
    """How far a binding is what it should be."""

    exact = "EXACT"
    """All is as the hardware asks for."""
    degraded = "DEGRADED"
    """Something the choice needs could not be learnt."""
    fallback = "FALLBACK"
    """What the hardware asks for is not allowed here, the next best was taken."""
    oversubscribed = "OVERSUBSCRIBED"
    """Shares cores with another rank."""
    unbound = "UNBOUND"
    """Not bound, on request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """The place of one rank."""

    rank: int
    local_rank: int
    gpu: str | None
    """Bus id."""
    home: int | None
    """NUMA node; None: not known, or several."""
    cpus: Ids
    """Logical CPUs, never empty."""
    cores: int
    """Physical cores behind them, for thread counts; at least 1."""
    memory: MemoryPolicy
    nics: tuple[str, ...]
    """NICs of its GPU, the main one first; empty: none, or a plugin chooses."""
    compute_nics: tuple[str, ...]
    """All NICs for training of the node, the same for every rank."""
    allowed: Ids
    """CPUs it was allowed before it was bound."""
    flags: tuple[BindingFlag, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]


def bind(
    snapshot: NodeSnapshot, ranks: Sequence[LocalRank], policy: BindingPolicy | None = None
) -> tuple[Binding, ...]:
    """The bindings of all ranks of this job on a node, in order of their local ranks.

    Raises TopologyError when ranks are doubled or a task is allowed no CPU.
    """
    policy = policy or BindingPolicy()
    if len({rank.local_rank for rank in ranks}) != len(ranks):
        raise TopologyError(f"local ranks {[rank.local_rank for rank in ranks]}: each may appear once")
    seats = seat_ranks(snapshot, sorted(ranks), policy)
    plan = _plan(snapshot, seats, policy)
    bindings = [_bind(plan, seat, rank) for seat in seats for rank in seat.ranks]
    return tuple(sorted(bindings, key=lambda binding: binding.local_rank))


def spare_cpus(snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> Ids:
    """Allowed CPUs no rank was given: for supervisors, loaders and writers; ascending, perhaps none."""
    taken = {cpu for binding in bindings for cpu in binding.cpus}
    allowed = {cpu for binding in bindings for cpu in binding.allowed}
    return tuple(cpu for cpu in snapshot.online if cpu in allowed - taken)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was decided for the node as a whole."""

    snapshot: NodeSnapshot
    policy: BindingPolicy
    shares: Shares
    users: Mapping[int, int]
    """Ranks on each CPU."""
    at_home: Mapping[int | None, int]
    """Ranks of each home node."""
    classes: NicClasses
    nics: Mapping[str, GpuNics]


def _plan(snapshot: NodeSnapshot, seats: Sequence[Seat], policy: BindingPolicy) -> _Plan:
    shares = _shares(snapshot, seats, policy.cpus)
    classes = classify_nics(snapshot, excluded=policy.excluded_nics)
    used = [seat.gpu.bdf for seat in seats if seat.gpu is not None]
    if policy.node_is_shared:
        used = [gpu.bdf for gpu in snapshot.gpus]
    return _Plan(
        snapshot=snapshot,
        policy=policy,
        shares=shares,
        users=Counter(cpu for share in shares.values() for cpu in share.cpus),
        at_home=Counter(seat.home.node for seat in seats for _ in seat.ranks),
        classes=classes,
        nics=choose_nics(snapshot, classes.compute, used),
    )


def _shares(snapshot: NodeSnapshot, seats: Sequence[Seat], policy: CpuPolicy) -> Shares:
    if policy is not CpuPolicy.none:
        return share_cores(snapshot, seats, policy)
    ranks = [rank for seat in seats for rank in seat.ranks]
    allowed = {rank: set(allowed_cpus(snapshot, rank)) for rank in ranks}
    return {
        rank: Share(pieces=tuple(piece for core in snapshot.cores if (piece := tuple(c for c in core if c in cpus))))
        for rank, cpus in allowed.items()
    }


def _bind(plan: _Plan, seat: Seat, rank: LocalRank) -> Binding:
    share = plan.shares[rank]
    memory = _memory(plan, seat, share)
    nics = plan.nics.get(seat.gpu.bdf, GpuNics(names=())) if seat.gpu else GpuNics(names=())
    return Binding(
        rank=rank.rank,
        local_rank=rank.local_rank,
        gpu=seat.gpu.bdf if seat.gpu else None,
        home=seat.home.node,
        cpus=share.cpus,
        cores=_cores(plan, share),
        memory=memory.policy,
        nics=nics.names,
        compute_nics=tuple(nic.name for nic in plan.classes.compute),
        allowed=allowed_cpus(plan.snapshot, rank),
        flags=_flags(plan, seat, share, memory),
        reasons=_reasons(plan, seat, share, memory, nics),
        warnings=_warnings(plan, seat, share, memory, nics),
    )


def _memory(plan: _Plan, seat: Seat, share: Share) -> MemoryChoice:
    if plan.policy.cpus is CpuPolicy.none:
        return MemoryChoice(policy=MemoryPolicy(mode=MemoryMode.none), why="no binding was asked for")
    need = plan.policy.memory_bytes_per_rank
    demand = None if need is None else MemoryDemand(bytes_per_rank=need, ranks=plan.at_home[seat.home.node])
    return choose_memory(plan.snapshot, seat.home, added=share.added_nodes, demand=demand)


def _cores(plan: _Plan, share: Share) -> int:
    """A rank without binding counts on its part of what all of them roam."""
    if plan.policy.cpus is CpuPolicy.none:
        return max(1, len(share.pieces) // len(plan.shares))
    return len(share.pieces)


def _sharers(plan: _Plan, share: Share) -> int:
    return max(plan.users[cpu] for cpu in share.cpus)


def _flags(plan: _Plan, seat: Seat, share: Share, memory: MemoryChoice) -> tuple[BindingFlag, ...]:
    if plan.policy.cpus is CpuPolicy.none:
        return (BindingFlag.unbound,)
    found = {
        BindingFlag.degraded: not seat.home.known,
        BindingFlag.fallback: share.fallback is not None or memory.warning is not None,
        BindingFlag.oversubscribed: _sharers(plan, share) > 1,
    }
    return tuple(flag for flag, is_set in found.items() if is_set) or (BindingFlag.exact,)


def _reasons(plan: _Plan, seat: Seat, share: Share, memory: MemoryChoice, nics: GpuNics) -> tuple[Reason, ...]:
    added = f" and GPU-less nodes {list(share.added_nodes)}" if share.added_nodes else ""
    where = f"node {seat.home.node}" if seat.home.node is not None else "its place"
    return (
        Reason(what="gpu", value=seat.gpu.bdf if seat.gpu else "none", why=seat.why),
        Reason(what="home", value=str(seat.home.node), why=seat.home.why),
        Reason(
            what="cpus",
            value=format_ids(share.cpus),
            why=share.fallback or f"{plan.policy.cpus.value}: its part of {where}{added}",
        ),
        Reason(what="memory", value=_memory_text(memory.policy), why=memory.why),
        Reason(
            what="nics",
            value=" ".join(nics.names) or "none",
            why="none for training is near" if nics.distance is None else f"{nics.distance.name} to the GPU",
        ),
    )


def _memory_text(policy: MemoryPolicy) -> str:
    return " ".join((policy.mode.value, *map(str, policy.nodes)))


def _warnings(plan: _Plan, seat: Seat, share: Share, memory: MemoryChoice, nics: GpuNics) -> tuple[str, ...]:
    home = None if seat.home.known else f"{seat.home.why}: all allowed CPUs are divided, memory isn't placed"
    found = (home, share.fallback, _warn_of_cores(plan, share), _warn_of_spread(plan), memory.warning, nics.warning)
    return tuple(warning for warning in found if warning is not None)


def _warn_of_spread(plan: _Plan) -> str | None:
    blind = not plan.snapshot.packages and len(plan.snapshot.cpu_nodes()) > 1
    if plan.policy.cpus is CpuPolicy.spread and blind:
        return "which nodes share a socket is not known: no cores of GPU-less nodes were added"
    return None


def _warn_of_cores(plan: _Plan, share: Share) -> str | None:
    if plan.policy.cpus is CpuPolicy.none:
        return None
    advice = "ask for more (--cpus-per-task; srun --exact)"
    if (sharers := _sharers(plan, share)) > 1:
        return f"{sharers} ranks share CPUs {format_ids(share.cpus)}: {advice}"
    if len(share.pieces) < FEW_CORES:
        return f"only {len(share.pieces)} cores; fewer than {FEW_CORES} starve data loading: {advice}"
    return None
