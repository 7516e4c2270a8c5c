"""Documents out of files: JSON lines, parquet and plain text, in units that can be read apart from each other."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.datasets.tokenizer import require_package
from pipeline.errors import DataError

UNIT_BYTES = 1 << 25
"""About how much of a file one unit is."""

_COUNTED_BYTES = 1 << 24


class Format(Enum):
    """How documents stand in a file."""

    json_lines = "json lines"
    """One JSON object a line."""
    json_lines_gz = "json lines, gzip"
    parquet = "parquet"
    """One row each."""
    text = "text"
    """The whole file is one document."""


_BY_SUFFIX = {
    ".jsonl": Format.json_lines,
    ".ndjson": Format.json_lines,
    ".jsonl.gz": Format.json_lines_gz,
    ".parquet": Format.parquet,
    ".txt": Format.text,
    ".md": Format.text,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A piece of a file that one process reads."""

    path: str
    format: Format
    begin: int
    """First byte of json lines, first row group of parquet."""
    end: int
    """As `begin`, of what follows; a line belongs to the unit it starts in."""
    bytes: int
    """About how much this is."""


@dataclass(frozen=True, slots=True)
class Record:
    """One document, or why it can't be read."""

    text: str
    problem: str = ""


def find_inputs(names: Sequence[str]) -> list[Path]:
    """Files that are named, and those in named folders whose suffix is known, in order.

    Raises DataError naming what is missing.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        inside = sorted(_walk(path)) if _mode(path, stat.S_ISDIR) else [path]
        if not inside:
            raise DataError(f"{path}: holds no file with a suffix out of {', '.join(_BY_SUFFIX)}")
        found += inside
    for path in found:
        if not _mode(path, stat.S_ISREG):
            raise DataError(f"{path}: is not a regular file; give files or folders of them")
    return found


def units_of(path: Path) -> list[Unit]:
    """The pieces of a file; raises DataError when it isn't what its name says."""
    kind, size = format_of(path) or Format.text, path.stat().st_size
    match kind:
        case Format.json_lines:
            edges = [*range(0, size, UNIT_BYTES), size]
            return [_unit(path, kind, *edge) for edge in pairwise(edges)]
        case Format.parquet:
            return list(_parquet_units(path))
        case _:
            return [Unit(path=str(path), format=kind, begin=0, end=size, bytes=size)] if size else []


def read_unit(unit: Unit, *, key: str) -> Iterator[Record]:
    """Its documents, in order; `key` names the field or column that holds the text.

    Raises DataError naming the file when it can't be read at all.
    """
    match unit.format:
        case Format.json_lines:
            return _read_lines(unit, key)
        case Format.json_lines_gz:
            return _read_gzip(unit, key)
        case Format.parquet:
            return _read_parquet(unit, key)
        case Format.text:
            return _read_text(unit)


def format_of(path: Path) -> Format | None:
    """How a file of this name is read; None: the name doesn't tell."""
    name = path.name.lower()
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)


def _mode(path: Path, test: Any) -> bool:
    try:
        return bool(test(path.stat().st_mode))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: can't be read ({reason}); give files or folders of them") from None


def _walk(folder: Path) -> Iterator[Path]:
    for root, _, files in os.walk(folder):
        yield from (Path(root, name) for name in files if format_of(Path(name)) is not None)


def _unit(path: Path, kind: Format, begin: int, end: int) -> Unit:
    return Unit(path=str(path), format=kind, begin=begin, end=end, bytes=end - begin)


# --------------------------------------------------------------------------- json lines


def _read_lines(unit: Unit, key: str) -> Iterator[Record]:
    with Path(unit.path).open("rb") as stream:
        if unit.begin:
            stream.seek(unit.begin - 1)
            stream.readline()  # the line that started before, and is the previous unit's
        while (at := stream.tell()) < unit.end and (line := stream.readline()):
            record = _record(line, key)
            if record is not None and record.problem:
                line_number = _lines_before(Path(unit.path), at) + 1
                record = Record("", f"{unit.path}: line {line_number}: {record.problem}")
            if record is not None:
                yield record


def _read_gzip(unit: Unit, key: str) -> Iterator[Record]:
    try:
        with gzip.open(unit.path, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                record = _record(line, key)
                if record is not None:
                    yield Record(record.text, record.problem and f"{unit.path}: line {number}: {record.problem}")
    except (OSError, EOFError) as error:
        raise DataError(f"{unit.path}: can't be unpacked ({error})") from error


def _record(line: bytes, key: str) -> Record | None:
    """The document of a line; None for a blank one."""
    if not line.strip():
        return None
    try:
        document = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Record("", f"invalid UTF-8 at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return Record("", f"no JSON ({str(error) or 'nested too deeply'})")
    if not isinstance(document, dict) or not isinstance(document.get(key), str):
        keys = ", ".join(sorted(document)[:8]) if isinstance(document, dict) else f"a {type(document).__name__}"
        return Record("", f"no text `{key}` (--key); there is: {keys}")
    return _checked(document[key])


def _checked(text: str) -> Record:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Record("", f"half of a surrogate pair at character {error.start + 1}, which is no text")
    return Record(text)


def _lines_before(path: Path, offset: int) -> int:
    """Newlines before an offset; only ever counted for a message."""
    count = 0
    with path.open("rb") as stream:
        while offset > 0 and (chunk := stream.read(min(offset, _COUNTED_BYTES))):
            count += chunk.count(b"\n")
            offset -= len(chunk)
    return count


# --------------------------------------------------------------------------- others


def _parquet_units(path: Path) -> Iterator[Unit]:
    metadata = _open_parquet(path).metadata
    begin, gathered = 0, 0
    for group in range(metadata.num_row_groups):
        gathered += metadata.row_group(group).total_byte_size
        if gathered >= UNIT_BYTES or group == metadata.num_row_groups - 1:
            yield Unit(path=str(path), format=Format.parquet, begin=begin, end=group + 1, bytes=gathered)
            begin, gathered = group + 1, 0


def _read_parquet(unit: Unit, key: str) -> Iterator[Record]:
    arrow, file = require_package("pyarrow"), _open_parquet(Path(unit.path))
    columns = file.schema_arrow
    if key not in columns.names:
        raise DataError(f"{unit.path}: no column {key!r} (--key); columns there: {', '.join(columns.names)}")
    kind = columns.field(key).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        raise DataError(f"{unit.path}: column {key!r} holds {kind}, not text")
    row = sum(file.metadata.row_group(group).num_rows for group in range(unit.begin))
    try:
        for batch in file.iter_batches(row_groups=range(unit.begin, unit.end), columns=[key]):
            for value in batch.column(0):
                row += 1
                yield _parquet_record(unit.path, row, value)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{unit.path}: damaged behind row {row} ({_first_line(error)})") from error


def _parquet_record(path: str, row: int, value: Any) -> Record:
    try:
        record = _checked(value.as_py() or "")
    except UnicodeDecodeError as error:
        record = Record("", f"invalid UTF-8 at byte {error.start + 1}")
    return Record(record.text, record.problem and f"{path}: row {row}: {record.problem}")


def _open_parquet(path: Path) -> Any:
    library, arrow = require_package("pyarrow.parquet"), require_package("pyarrow")
    try:
        return library.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: is no parquet file ({_first_line(error)})") from error


def _read_text(unit: Unit) -> Iterator[Record]:
    try:
        yield Record(Path(unit.path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        yield Record("", f"{unit.path}: line {line}: invalid UTF-8 at byte {error.start + 1} of the file")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
