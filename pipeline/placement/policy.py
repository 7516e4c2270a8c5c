"""What binding is asked to do: for which ranks, and how."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.types import CpuPolicy

__all__ = ["BindingPolicy", "CpuPolicy", "LocalRank"]


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
