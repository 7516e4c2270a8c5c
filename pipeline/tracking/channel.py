"""The way of an event out of a training process: a queue, a thread, a unix socket to the node's leader.

Training never waits for it and never sees its failures. Non-finite floats travel as Python's `NaN` and `Infinity`,
which `json.loads` reads back; the journal gives them their portable form.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue

CAPACITY = 100_000
"""Events that wait while the leader does not read; what comes on top is dropped and counted."""
LINE_LIMIT_BYTES = 1 << 20
RECONNECT_S = 0.2

_BATCH = 256
_Item = tuple[str, float, dict[str, object]]


class EventChannel:
    """Hands events of one rank to its node's leader, in order; an event can arrive twice after a reconnect."""

    def __init__(self, socket_path: Path, rank: int) -> None:
        self._socket_path = socket_path
        self._rank = rank
        # SimpleQueue.put may interrupt itself, so a signal handler can emit too.
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._dropped = 0
        self._dropped_reported = 0
        self._unsent: list[bytes] = []
        self._closed = False
        self._drained = False
        self._done = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="himori-events", daemon=True)
        self._thread.start()

    def emit(self, kind: str, data: Mapping[str, object]) -> None:
        """Takes an event and returns at once; it is dropped when the queue is full or the channel closed."""
        if self._closed or self._queue.qsize() >= CAPACITY:
            self._dropped += 1
            return
        self._queue.put((kind, time.time(), dict(data)))

    def close(self, timeout_s: float) -> bool:
        """Takes no more events and waits until all were handed over; False when some could not be."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        self._abandoned.set()
        return self._done

    def _run(self) -> None:
        while not (self._done or self._abandoned.is_set()):
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(os.fspath(self._socket_path))
                    connection.sendall(_line({"message": "worker", "rank": self._rank, "pid": os.getpid()}))
                    self._forward(connection)
            except OSError:
                self._abandoned.wait(RECONNECT_S)

    def _forward(self, connection: socket.socket) -> None:
        """Sends until the channel is closed and empty; raises OSError when the leader went away."""
        while self._unsent or not self._drained:
            if not self._unsent:
                self._unsent = [self._event_line(*item) for item in self._take()]
            connection.sendall(b"".join(self._unsent))
            self._unsent = []
        self._done = True

    def _take(self) -> list[_Item]:
        """The next events, waiting for the first; notes when the last one was taken."""
        items: list[_Item] = []
        item = self._queue.get()
        while item is not None:
            items.append(item)
            if len(items) == _BATCH or self._queue.empty():
                break
            item = self._queue.get()
        self._drained = item is None
        return items + self._drop_report()

    def _drop_report(self) -> list[_Item]:
        dropped = self._dropped - self._dropped_reported
        if dropped == 0:
            return []
        self._dropped_reported += dropped
        message = f"rank {self._rank}: {dropped} events were dropped, their queue was full or closed"
        return [("warning", time.time(), {"message": message})]

    def _event_line(self, kind: str, when: float, data: dict[str, object]) -> bytes:
        try:
            line = _line({"message": "event", "kind": kind, "time": when, "rank": self._rank, "data": data})
        except (TypeError, ValueError, RuntimeError) as error:
            return self._event_line("warning", when, {"message": f"an event {kind!r} can't be written: {error}"})
        if len(line) > LINE_LIMIT_BYTES:
            return self._event_line("warning", when, {"message": f"an event {kind!r} of {len(line)} bytes was dropped"})
        return line


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"
