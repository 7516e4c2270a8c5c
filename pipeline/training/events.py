"""Where a rank's events go: to the leader of its node, or to standard output when there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pipeline.tracking.channel import EventChannel
from pipeline.training.context import WorkerContext


class EventSink(Protocol):
    """Takes what a rank has to say, without ever holding the training up."""

    def emit(self, kind: str, data: Mapping[str, object]) -> None:
        """Hands one event over."""

    def close(self, timeout_s: float) -> bool:
        """Waits at most this long, in seconds, for events still on their way; whether all got there."""


class PrintedEvents:
    """Prints each event as a line: `event KIND JSON`."""

    def emit(self, kind: str, data: Mapping[str, object]) -> None:
        """Prints one event."""
        print(f"event {kind} {json.dumps(data)}", flush=True)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Nothing is ever on its way."""
        return True


def open_sink(context: WorkerContext) -> EventSink:
    """The sink that the context asks for."""
    return PrintedEvents() if context.events is None else EventChannel(context.events, context.rank)


@contextmanager
def phase(sink: EventSink, name: str) -> Iterator[None]:
    """Reports how long a part of the start took; says nothing of a part that failed."""
    start = time.perf_counter()
    yield
    sink.emit("phase", {"name": name, "seconds": time.perf_counter() - start})
