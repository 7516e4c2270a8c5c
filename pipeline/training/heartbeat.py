"""Each rank's word that it goes on, and how long until the next one at most: what the hang watchdog acts on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.training.events import EventSink

FIRST_STEP_S = 1800.0
"""Kernels are compiled and communicators made in the first step of an attempt; nothing was measured before it."""
CHECKPOINT_S = 1800.0
STEPS_SLOWER = 10.0
"""How many times as long as the slowest of recent steps a step may take."""
_RECENT = 32


class Heartbeat:
    """Says what this rank is about to do and for how long that may take, seconds."""

    def __init__(self, sink: EventSink, *, least_s: float) -> None:
        self._sink = sink
        self._least_s = least_s
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._step = 0

    def stepped(self, seconds: float) -> None:
        """Takes note of how long a step took."""
        self._recent.append(seconds)

    def begin_step(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self._say("step", self._step_limit_s())

    def begin_part(self, name: str) -> None:
        """A part of a step begins; it has the time of the whole step."""
        self._say(name, self._step_limit_s())

    @contextmanager
    def busy(self, doing: str, limit_s: float = CHECKPOINT_S) -> Iterator[None]:
        """Something that is no step: a checkpoint, an evaluation."""
        self._say(doing, max(limit_s, self._least_s))
        yield
        self._say("between", self._step_limit_s())

    def over(self) -> None:
        """Nothing more is to be expected in any time."""
        self._say("over", 0.0)

    def _step_limit_s(self) -> float:
        if not self._recent:
            return max(FIRST_STEP_S, self._least_s)
        return max(self._least_s, STEPS_SLOWER * max(self._recent))

    def _say(self, doing: str, limit_s: float) -> None:
        if self._least_s > 0:
            self._sink.emit("beat", {"step": self._step, "doing": doing, "limit_s": limit_s})
