"""A rank's part in binding: which CPUs it may use, whether the plan keeps to them, and where its supervisor goes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.hardware.topology import Ids, TopologyError, format_ids
from pipeline.placement.binding import Binding
from pipeline.placement.environment import allowed_before_binding

BOUND_CPUS = "HIMORI_BOUND_CPUS"
"""The CPUs a worker is bound to: only a process that still has just these was narrowed by us."""


def allowed_cpus(environ: Mapping[str, str], affinity: Ids) -> Ids:
    """CPUs this process may use: its affinity, or what that was before a run around this one was bound.

    Variables travel further than affinities (through sbatch to other nodes), so both have to agree.
    """
    if environ.get(BOUND_CPUS) != format_ids(affinity):
        return affinity
    try:
        return allowed_before_binding(environ) or affinity
    except TopologyError as error:
        print(f"himori: {error}; the run keeps to its present CPUs", flush=True)
        return affinity


def complaint_about(binding: Binding, rank: int, allowed: Ids) -> str | None:
    """Why this rank won't take the place it was given; None: it does."""
    if binding.rank != rank:
        return f"rank {rank} was given the place of rank {binding.rank}: it stays where it is"
    if outside := set(binding.cpus) - set(allowed):
        return f"rank {rank} was given CPUs {format_ids(outside)}, it may use {format_ids(allowed)}: it stays unbound"
    return None


def move_aside(spare: Ids, allowed: Ids) -> None:
    """Moves all threads of this process to spare CPUs, as far as there are any."""
    cpus = set(spare) & set(allowed)
    if not cpus:
        return
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except OSError:  # it ended meanwhile, or may not move: a supervisor in the way is no reason to stop
            continue
