"""What a rank's process is told through its environment, read in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pipeline.errors import UserError
from pipeline.placement.environment import COMPARED

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerContext:
    """Which rank this process is and how it reaches the others."""

    rank: int
    world_size: int
    local_rank: int
    """Rank within the node; also the index of the rank's GPU."""
    master_addr: str
    """Host on which rank 0 listens."""
    master_port: int
    attempt: int
    node: str
    events: Path | None
    """Unix socket of the node's leader; None: events are printed."""
    listen_fd: int | None
    """Rank 0 only: a socket already listening on `master_port`; None: rank 0 opens the port itself."""
    binding_digest: str = ""
    """Digest of the plan by which the ranks of this node are bound; empty: there is none."""
    applied: str = ""
    """What of its binding was applied, as JSON; empty: nothing was asked for."""
    binding_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that a binding sets and libraries act on, as far as they are set."""


def read_context(environ: Mapping[str, str]) -> WorkerContext:
    """The context that the supervisor set; raises UserError naming a variable that is missing or wrong."""
    return WorkerContext(
        rank=_read(environ, "RANK", int),
        world_size=_read(environ, "WORLD_SIZE", int),
        local_rank=_read(environ, "LOCAL_RANK", int),
        master_addr=_read(environ, "MASTER_ADDR", str),
        master_port=_read(environ, "MASTER_PORT", int),
        attempt=_read(environ, "HIMORI_ATTEMPT", int),
        node=_read(environ, "HIMORI_NODE", str),
        events=_read_optional(environ, "HIMORI_EVENTS", Path),
        listen_fd=_read_optional(environ, "HIMORI_LISTEN_FD", int),
        binding_digest=environ.get("HIMORI_BINDING", ""),
        applied=environ.get("HIMORI_APPLIED", ""),
        binding_variables={name: environ[name] for name in COMPARED if name in environ},
    )


def _read(environ: Mapping[str, str], name: str, kind: Callable[[str], T]) -> T:
    value = _read_optional(environ, name, kind)
    if value is None:
        raise UserError(f"{name} is not set; workers are started by `himori submit`, not by hand")
    return value


def _read_optional(environ: Mapping[str, str], name: str, kind: Callable[[str], T]) -> T | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"{name}={text!r} is not a whole number; it is set by the supervisor") from None
