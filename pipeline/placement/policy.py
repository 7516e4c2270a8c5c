"""What binding is asked to do: for which ranks, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CpuPolicy(Enum):
    """How cores are given out."""

    strict = "strict"
    """Cores of the home node; nodes without GPUs stay free for loaders, writers and daemons."""
    spread = "spread"
    """Also the cores of GPU-less nodes of the same socket."""
    equalize = "equalize"
    """As strict, but every rank only gets as many cores as the poorest."""
    none = "none"
    """No binding; GPUs and NICs are still chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BindingPolicy:
    """How to bind."""

    cpus: CpuPolicy = CpuPolicy.strict
    memory_bytes_per_rank: int | None = None
    """Asks for hard memory binding where a rank's node has this much for each of its ranks; None: prefer only."""
    node_is_shared: bool = False
    """Other jobs may run beside this one: cores and NICs of GPUs that are not this job's are left to them."""
    excluded_nics: tuple[str, ...] = ()
    """NICs that carry no training traffic, by name."""


@dataclass(frozen=True, order=True, kw_only=True, slots=True)
class LocalRank:
    """One rank on this node."""

    local_rank: int
    rank: int
    """Rank in the whole run."""
