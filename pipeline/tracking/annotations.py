"""What people say about a run: notes, which are only ever added to, and tags; in the run directory, then in MLflow."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import RunDirError, UserError
from pipeline.rundir import SCHEMA_VERSION, RunDir, read_optional, write_json
from pipeline.tracking.provenance import login_name
from pipeline.tracking.secret_text import find_secret, is_secret_name
from pipeline.tracking.store import file_lock

MLFLOW_PREFIX = "user."
LONGEST_NOTE = 20_000
"""Characters of one note."""
LONGEST_VALUE = 5000
"""Characters of a tag's value; MLflow takes 8000 bytes or characters, by its database."""
LOCK_S = 10.0
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./ -]{0,199}")


@dataclass(frozen=True, slots=True)
class Note:
    """One thing somebody said about a run."""

    time: float
    """Seconds since the epoch."""
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class TagsFile:
    """`tags.json`."""

    tags: dict[str, str | None] = field(default_factory=dict)
    """None: removed, which MLflow has still to be told by whichever sync comes."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Notes and tags of a run, as they were at one moment."""

    notes: tuple[Note, ...]
    changes: Mapping[str, str | None]
    mark: str
    """Identifies the content; empty where nobody said anything."""

    @property
    def tags(self) -> dict[str, str]:
        """Tags there are, by key."""
        return {key: value for key, value in sorted(self.changes.items()) if value is not None}

    @property
    def mlflow_tags(self) -> dict[str, str]:
        """Tags as MLflow shows them."""
        return {MLFLOW_PREFIX + key: value for key, value in self.tags.items()}

    @property
    def markdown(self) -> str:
        """The notes for the end of a description, the newest first: of a text too long the end is left out."""
        told = "".join(f"\n**{note.by}, {when(note)}**\n\n{note.text}\n" for note in reversed(self.notes))
        return f"\n#### Notes\n{told}" if told else ""

    @property
    def removed(self) -> list[str]:
        """MLflow tags that must not be there any more."""
        return [MLFLOW_PREFIX + key for key, value in self.changes.items() if value is None]


NOTHING_SAID = Annotations((), {}, "")


def add_note(run: RunDir, text: str) -> Note:
    """Appends a note, durably; raises UserError for one that is empty, too long or holds a secret."""
    note = Note(time.time(), login_name(), text.strip())
    if not note.text:
        raise UserError("the note is empty; give its text, or - to read it from standard input")
    if len(note.text) > LONGEST_NOTE:
        raise UserError(
            f"the note has {len(note.text)} characters, {LONGEST_NOTE} are allowed; put a file into reports/"
        )
    if kind := find_secret(note.text):
        raise UserError(f"the note seems to hold {kind}, which everybody who sees the run would see; leave it out")
    line = json.dumps({"schema": SCHEMA_VERSION, "time": note.time, "by": note.by, "text": note.text})
    with file_lock(run.path / ".notes.lock", _patience()), run.notes_file.open("ab+") as stream:
        # A line that a full disk or a crash cut off stays alone.
        torn = stream.tell() > 0 and os.pread(stream.fileno(), 1, stream.tell() - 1) != b"\n"
        stream.write(b"\n" * torn + line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    return note


def change_tags(run: RunDir, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Sets tags, or with None removes them, all or none; the tags there are then. Raises UserError, RunDirError."""
    with file_lock(run.path / ".tags.lock", _patience()):
        known = read_optional(run.tags_file, TagsFile) or TagsFile()
        missing = sorted(key for key, value in changes.items() if value is None and known.tags.get(key) is None)
        if missing:
            there = ", ".join(key for key, value in known.tags.items() if value is not None) or "none"
            raise UserError(f"run {run.run_id} has no tag {missing[0]!r} to remove; there are: {there}")
        write_json(run.tags_file, TagsFile({**known.tags, **changes}))
    return read_annotations(run).tags


def parse_tags(pairs: Sequence[str]) -> dict[str, str | None]:
    """`KEY=VALUE`, and `KEY=` to remove one; raises UserError for what is no tag or holds a secret."""
    found: dict[str, str | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            shown = "a secret" if find_secret(pair) else repr(pair)
            raise UserError(f"{shown} is no tag; give KEY=VALUE, or KEY= to remove the tag")
        _check_tag(key, value)
        found[key] = value or None
    return found


def _check_tag(key: str, value: str) -> None:
    if not _KEY.fullmatch(key) or find_secret(key):
        raise UserError(
            "the key of a tag is 1 to 200 letters, digits, blanks and . / _ - with a letter or digit first"
            + ("" if find_secret(key) else f"; got {key!r}")
        )
    if len(value) > LONGEST_VALUE:
        raise UserError(f"tag {key}: {len(value)} characters, {LONGEST_VALUE} are allowed; `himori note` takes more")
    if value and is_secret_name(key):
        raise UserError(f"tag {key}: by its name a secret, which everybody who sees the run would see; leave it out")
    if kind := find_secret(value):
        raise UserError(
            f"tag {key}: the value seems to be {kind}; everybody who sees the run would see it; leave it out"
        )


def read_annotations(run: RunDir) -> Annotations:
    """Notes and tags of a run; lines of the notes that are cut off are skipped. Raises RunDirError."""
    raw = run.notes_file.read_bytes() if run.notes_file.exists() else b""
    tags = read_optional(run.tags_file, TagsFile) or TagsFile()
    said = raw + json.dumps(tags.tags, sort_keys=True).encode() if raw or tags.tags else b""
    notes = (_note(run, line) for line in raw.split(b"\n") if line.strip())
    return Annotations(
        tuple(note for note in notes if note is not None), tags.tags, hashlib.sha256(said).hexdigest() if said else ""
    )


def _note(run: RunDir, line: bytes) -> Note | None:
    try:
        document = json.loads(line)
        version = document.pop("schema")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if version != SCHEMA_VERSION:
        raise RunDirError(f"{run.notes_file}: schema version {version}, this himori reads {SCHEMA_VERSION}")
    return Note(**document)


def when(note: Note) -> str:
    """Date and time of a note, in UTC, to the minute."""
    return f"{datetime.datetime.fromtimestamp(note.time, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _patience() -> Callable[[], float]:
    until = time.monotonic() + LOCK_S
    return lambda: until - time.monotonic()
