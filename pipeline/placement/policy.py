"""What binding is asked to do: for which ranks, and how."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import Cluster, CpuPolicy, HardwareProfile

__all__ = ["BindingPolicy", "CpuPolicy", "LocalRank", "binding_policy"]

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class BindingPolicy:
    """How to bind."""

    cpus: CpuPolicy = CpuPolicy.strict
    memory_bytes_per_rank: int | None = None
    """Asks for hard memory binding where a rank's node has this much for each of its ranks; None: prefer only."""
    node_is_shared: bool = False
    """Other jobs may run beside this one: cores and NICs of GPUs that are not this job's are left to them."""
    excluded_nics: tuple[str, ...] = ()
    """NICs that carry no training traffic, by name or bus id."""


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class LocalRank:
    """One rank on this node."""

    local_rank: int
    rank: int
    """Rank in the whole run."""


def binding_policy(cluster: Cluster, profile: HardwareProfile) -> BindingPolicy:
    """How the nodes of a cluster are bound that are of this hardware."""
    need = cluster.bind_memory_gib_per_rank
    return BindingPolicy(
        cpus=cluster.binding,
        memory_bytes_per_rank=None if need is None else int(need * _GIB),
        node_is_shared=not cluster.exclusive,
        excluded_nics=tuple(profile.node_spec.excluded_nics),
    )
