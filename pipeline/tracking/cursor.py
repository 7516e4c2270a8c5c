"""How far tracking of a run has come: `sync.json`, the only thing that ties a run directory to its MLflow run."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.errors import RunDirError
from pipeline.rundir import RunDir, read_json, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """What of a run is in the store; deleting the file uploads the run again, which changes nothing there."""

    store: str
    """URI of the store that the rest is about."""
    experiment_id: str = ""
    mlflow_run_id: str = ""
    """Empty before the run was created."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Bytes of each journal whose points are uploaded, by path in the run directory."""
    sending: dict[str, int] = field(default_factory=dict)
    """Where `offsets` will be once the upload in progress is done; after a crash exactly this is sent again."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the uploaded artifacts, by name."""
    end: str = ""
    """The end that was uploaded last."""
    annotations: str = ""
    """The notes and tags that were uploaded last."""
    points: int = 0
    repeats: int = 0
    repeats_differ: int = 0
    damaged_lines: int = 0


def read_cursor(run: RunDir, store: str) -> Cursor:
    """The run's cursor; a new one when there is none, it can't be read or it is about another store."""
    try:
        cursor = read_json(run.sync_file, Cursor)
    except (FileNotFoundError, RunDirError):
        return Cursor(store=store)
    return cursor if cursor.store == store else Cursor(store=store)


def write_cursor(run: RunDir, cursor: Cursor) -> None:
    """Writes the cursor, durably."""
    write_json(run.sync_file, cursor)
