"""What a scheduler says about a job, in words common to all launchers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class JobPhase(Enum):
    """Where a job is in its life."""

    held = "held"
    pending = "pending"
    running = "running"
    over = "over"
    unknown = "unknown"
    """The scheduler did not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """One job as its scheduler sees it."""

    phase: JobPhase
    word: str = ""
    """The scheduler's own state, e.g. NODE_FAIL."""
    detail: str = ""
    """Why it waits, where the scheduler says so."""

    @property
    def is_alive(self) -> bool:
        """Whether the job can still do something, as far as is known."""
        return self.phase is not JobPhase.over
