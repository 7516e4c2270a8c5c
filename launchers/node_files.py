"""The files of one node: its journal and its log, appended by one thread so that a slow file system stops nobody."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.rundir import AttemptDir, write_json
from pipeline.tracking.journal import Event, JournalWriter

SYNC_EVERY_S = 1.0
"""How often the journal is made durable, so that other nodes see it on a network file system."""


class NodeFiles:
    """Appends events and log lines of one node, in order."""

    def __init__(self, attempt: AttemptDir, node: str) -> None:
        self._node = node
        self._attempt = attempt
        attempt.journal_dir.mkdir(parents=True, exist_ok=True)
        attempt.logs_dir.mkdir(parents=True, exist_ok=True)
        self._journal = JournalWriter(attempt.journal(node))
        self._log = attempt.log(node).open("a", encoding="utf-8", errors="replace")
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="node-files", daemon=True)
        self._thread.start()

    def event(self, kind: str, data: Mapping[str, Any], *, rank: int | None, at: float | None = None) -> None:
        """Appends an event to the journal; `at` is its time, now if left out."""
        event = Event(kind=kind, time=time.time() if at is None else at, node=self._node, rank=rank, data=dict(data))
        self._queue.put(lambda: self._journal.append(event))

    def line(self, rank: int | None, text: str) -> None:
        """Appends a line to the log, with the time and the rank it came from."""
        who = "himori" if rank is None else str(rank)
        stamped = f"{time.strftime('%H:%M:%S')} [{who}] {text}\n"
        self._queue.put(lambda: self._write_line(stamped))

    def certificate(self, certificate: object) -> None:
        """Writes where the ranks of the node are."""
        self._queue.put(lambda: write_json(self._attempt.binding(self._node), certificate))

    def close(self, timeout_s: float) -> bool:
        """Writes what is queued; False when the file system took longer than `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_line(self, text: str) -> None:
        self._log.write(text)
        self._log.flush()

    def _work(self) -> None:
        synced = 0.0
        while (write := self._queue.get()) is not None:
            try:
                write()
                if self._queue.empty() and time.monotonic() - synced > SYNC_EVERY_S:
                    self._journal.sync()
                    synced = time.monotonic()
            except OSError as error:  # full or vanished disk: training goes on, the launcher's own log says it
                print(f"himori: can't write the files of node {self._node}: {error}", flush=True)
        with contextlib.suppress(OSError):  # what it says of lost lines is said by now
            self._journal.close()
            self._log.close()
