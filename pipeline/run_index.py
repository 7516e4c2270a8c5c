"""The index of a run root: how its finished runs ended, so that asking for thousands doesn't open each directory.

It is a cache and nothing else: written by whoever asks, whole and by renaming, lost without loss. A run in it that
gets a new attempt is read again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.rundir import SCHEMA_VERSION, write_text
from pipeline.types import RunState

FILE = "index.json"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    state: RunState
    message: str
    job_id: str
    ended_at: float
    attempts_mtime_ns: int
    """Of the folder of attempts: another one means that a new attempt began."""


class RunIndex:
    """The ends that are known of a run root."""

    def __init__(self, run_root: Path) -> None:
        self._root = run_root
        self._file = run_root / FILE
        self._known = _read(self._file)
        self._changed = False

    def get(self, run_id: str) -> Ended | None:
        """How a run ended, or None while that isn't known here."""
        found = self._known.get(run_id)
        if found is None or found.attempts_mtime_ns != attempts_mtime_ns(self._root, run_id):
            return None
        return found

    def put(self, run_id: str, ended: Ended) -> None:
        """Notes the end of a run."""
        self._known[run_id] = ended
        self._changed = True

    def drop_all(self) -> None:
        """Forgets everything."""
        self._known = {}
        self._changed = True

    def __len__(self) -> int:
        return len(self._known)

    def save(self) -> None:
        """Writes what is new, if anything is; a run root that can't be written goes without an index."""
        if not self._changed:
            return
        rows = {
            run_id: [one.state.value, one.message, one.job_id, one.ended_at, one.attempts_mtime_ns]
            for run_id, one in self._known.items()
        }
        with contextlib.suppress(OSError):
            write_text(self._file, json.dumps({"schema": SCHEMA_VERSION, "ended": rows}), durable=False)
        self._changed = False

    def keep_only(self, run_ids: Iterable[str]) -> None:
        """Forgets runs that are gone."""
        kept = set(run_ids)
        gone = self._known.keys() - kept
        if gone:
            self._known = {run_id: one for run_id, one in self._known.items() if run_id in kept}
            self._changed = True


def attempts_mtime_ns(run_root: Path, run_id: str) -> int:
    """When an attempt was last added to a run; 0 for a run without any."""
    try:
        return os.stat(f"{run_root}/{run_id}/attempts").st_mtime_ns  # noqa: PTH116 - called for ten thousands
    except OSError:
        return 0


def _read(file: Path) -> dict[str, Ended]:
    """What the file holds; nothing of one that is damaged or from another version."""
    try:
        document = json.loads(file.read_bytes())
        if document["schema"] != SCHEMA_VERSION:
            return {}
        return {run_id: Ended(RunState(row[0]), *row[1:]) for run_id, row in document["ended"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
