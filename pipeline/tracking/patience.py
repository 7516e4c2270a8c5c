"""How long a tracking store that does not answer is asked again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

from pipeline.rundir import RunDir

UNANSWERED_S = 30.0
"""How long a sync that somebody waits for asks for one answer."""
LOCKED_S = 120.0
"""How long it waits for another process, whose lock says that it lives: the first on a store makes its schema."""
STOP_S = 5.0
"""How long a follower that was told to stop goes on."""


class Patience(Protocol):
    """How long a store that does not answer is asked again."""

    def left_s(self, since: float, *, unanswered_s: float = UNANSWERED_S) -> float:
        """Seconds left for a request first made at monotonic time `since`; 0 or less: give up."""


@dataclass(frozen=True, slots=True)
class Once:
    """A sync that somebody waits for."""

    deadline: float
    """Monotonic time at which it has to be over."""

    def left_s(self, since: float, *, unanswered_s: float = UNANSWERED_S) -> float:
        """As in `Patience`."""
        return min(since + unanswered_s, self.deadline) - time.monotonic()


@dataclass(slots=True)
class Following:
    """A sync beside a job: waits as long as the job runs, then as long as the run's configuration says."""

    run: RunDir
    finish_timeout_s: float
    _told_at: float | None = None
    _over_at: float | None = None

    def tell_to_stop(self) -> None:
        """Leaves a few seconds for a last pass; safe to call from a signal handler."""
        self._told_at = self._told_at or time.monotonic()

    @property
    def is_told_to_stop(self) -> bool:
        """Whether somebody wants it to end."""
        return self._told_at is not None

    def pause(self, seconds: float) -> None:
        """Waits, in slices: a sleep goes on after a signal, and an Event may not be set from its handler."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_told_to_stop:
            time.sleep(0.1)

    def left_s(self, since: float, *, unanswered_s: float = UNANSWERED_S) -> float:  # noqa: ARG002
        """As in `Patience`."""
        self._look_for_end()
        told = math.inf if self._told_at is None else self._told_at + STOP_S
        over = math.inf if self._over_at is None else self._over_at + self.finish_timeout_s
        return min(told, over) - time.monotonic()

    def _look_for_end(self) -> None:
        attempt = self.run.last_attempt()
        if attempt is None or not attempt.end_file.exists():
            self._over_at = None
        elif self._over_at is None:
            self._over_at = time.monotonic()
