"""The journal of a node: one checksummed JSON line an event, appended while a run lives and never cut."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.errors import RunDirError

SCHEMA = 1
CHUNK_BYTES = 4 << 20

_CRC_TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"}\n')
_CRC_TAIL_BYTES = len(b',"crc":"00000000"}\n')
# JSON has no NaN, so non-finite floats are these strings; a string that reads like one gets a backslash in front.
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_READS_LIKE_ONE = re.compile(r"\\*(?:NaN|-?Infinity)")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on one rank, or on its node when `rank` is None."""

    kind: str
    time: float
    """Seconds since the epoch."""
    node: str
    rank: int | None
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class JournalChunk:
    """What one read of a journal found."""

    events: tuple[Event, ...]
    offset: int
    """Where the next read starts: behind the last whole line, bytes."""
    damaged: tuple[int, ...]
    """Offsets of the lines that were skipped because they are not what was written, bytes."""


class JournalWriter:
    """Appends events to one journal; a torn last line of an earlier writer is left as it is."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = _ends_torn(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: Event) -> None:
        """Writes one line by one write; raises OSError when not all of it could be written."""
        line = b"\n" * self._torn + encode_event(event)
        self._torn = os.write(self._descriptor, line) != len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, "only a part of a journal line could be written")

    def sync(self) -> None:
        """Makes what was appended durable and, on a network file system, visible to other nodes; this can block."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes the file; nothing can be appended afterwards."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path, offset: int = 0, *, limit: int = CHUNK_BYTES) -> JournalChunk:
    """Events from `offset` on, until at least `limit` bytes are read or no whole line is left.

    A journal that does not exist yet holds no events; a last line without its end is left for the next read.
    Raises RunDirError when the journal was written by another version.
    """
    events: list[Event] = []
    damaged: list[int] = []
    end = offset + limit
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return JournalChunk((), offset, ())
    with stream:
        stream.seek(offset)
        while offset < end and (line := stream.readline()).endswith(b"\n"):
            event = _decode_line(line, path)
            if event is None:
                damaged.append(offset)
            else:
                events.append(event)
            offset += len(line)
    return JournalChunk(tuple(events), offset, tuple(damaged))


def encode_event(event: Event) -> bytes:
    """The line of an event, its end included."""
    fields = {
        "schema": SCHEMA,
        "kind": event.kind,
        "time": event.time,
        "node": event.node,
        "rank": event.rank,
        "data": event.data,
    }
    body = json.dumps(_to_json(fields), separators=(",", ":"), allow_nan=False).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def _decode_line(line: bytes, path: Path) -> Event | None:
    body, tail = line[:-_CRC_TAIL_BYTES], _CRC_TAIL.fullmatch(line[-_CRC_TAIL_BYTES:])
    if tail is None or int(tail[1], 16) != zlib.crc32(body):
        return None
    fields = _from_json(json.loads(body + b"}"))
    if fields["schema"] != SCHEMA:
        raise RunDirError(f"{path}: journal of version {fields['schema']}, this himori reads {SCHEMA}")
    return Event(fields["kind"], float(fields["time"]), fields["node"], fields["rank"], fields["data"])


def _to_json(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case str() if _READS_LIKE_ONE.fullmatch(value):
            return "\\" + value
        case dict():
            return {key: _to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_to_json(item) for item in value]
    return value


def _from_json(value: Any) -> Any:
    match value:
        case str() if _READS_LIKE_ONE.fullmatch(value):
            return _NON_FINITE[value] if value in _NON_FINITE else value[1:]
        case dict():
            return {key: _from_json(item) for key, item in value.items()}
        case list():
            return [_from_json(item) for item in value]
    return value


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return False
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) != b"\n"
    except FileNotFoundError:
        return False
