"""Reads `nvidia-smi topo -m` as people paste it; what is cut or contradictory is refused, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.hardware.topology import Distance, Ids, Link, TopologyError, parse_ids

_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
"""The escape itself is often lost where people paste."""
_CELL = re.compile(r"X|NV\d+|NODE|PIX|PXB|PHB|SYS")
_CELLS = re.compile(rf"(?:{_CELL.pattern})+")
_NUMBERED = re.compile(r"(?:GPU|NIC)\d+")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_TAIL = (
    ("cpus", re.compile(r"CPU Affinity")),
    ("gpu_numa", re.compile(r"GPU NUMA(?: ID)?")),
    ("numa", re.compile(r"(?<!GPU )NUMA(?: Affinity)?")),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopoGpu:
    """One GPU row."""

    name: str
    """`GPU0`."""
    cpus: Ids
    """Local CPUs that the caller was allowed; blank where that were none."""
    numa: Ids | None
    """NUMA nodes, several where GPU memory has nodes too or nothing is known; None: N/A or no such column."""
    memory_node: int | None = None
    """NUMA node of its own memory; None: it has none or there is no such column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopoTable:
    """The table, checked."""

    gpus: tuple[TopoGpu, ...]
    nics: tuple[str, ...]
    """RDMA names where there is a legend, else `NIC0`."""
    links: tuple[Link, ...]
    """GPU to NIC, and NIC to NIC where these rows were printed."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str

    def error(self, what: str) -> TopologyError:
        return TopologyError(f"nvidia-smi topo, line {self.number}: {what}")


@dataclass(frozen=True, slots=True)
class _Header:
    line: _Line
    devices: tuple[str, ...]
    columns: tuple[tuple[str, int], ...]
    """Columns behind the matrix with where they start, left to right."""


@dataclass(frozen=True, slots=True)
class _Row:
    line: _Line
    cells: Mapping[str, str]
    tail: Mapping[str, str] = field(default_factory=dict)


def parse_topo(text: str) -> TopoTable:
    """Reads the output of `nvidia-smi topo -m` (or -mp), whatever stands around it.

    Raises TopologyError naming the line that is cut or malformed.
    """
    lines = [_Line(i, _ANSI.sub("", line)) for i, line in enumerate(text.splitlines(), start=1)]
    header = _find_header(lines)
    rows = {}
    for line in _body(lines, header):
        name, row = _parse_row(line, header)
        if name in rows:
            raise line.error(f"a second row {name}")
        rows[name] = row
    _check_complete(header, rows)
    _check_symmetry(rows)
    return _table(header, rows, _legend(lines))


def _find_header(lines: Sequence[_Line]) -> _Header:
    for line in lines:
        start = line.text.find("CPU Affinity")
        if start >= 0 and "GPU0" in line.text[:start]:
            return _Header(line, _device_names(line.text[:start].split()), _tail_columns(line.text))
    raise TopologyError("nvidia-smi topo: no header line with GPU0 and 'CPU Affinity'")


def _device_names(words: Iterable[str]) -> tuple[str, ...]:
    """Splits names that lost the blank between them."""
    names: list[str] = []
    for word in words:
        parts = _NUMBERED.findall(word)
        names.extend(parts if "".join(parts) == word else [word])
    return tuple(names)


def _tail_columns(text: str) -> tuple[tuple[str, int], ...]:
    found = [(name, match.start()) for name, pattern in _TAIL if (match := pattern.search(text))]
    return tuple(sorted(found, key=lambda column: column[1]))


def _body(lines: Sequence[_Line], header: _Header) -> list[_Line]:
    """Up to the first line without a word; blank lines below the header don't count."""
    body: list[_Line] = []
    for line in lines[header.line.number :]:
        if not re.search(r"\w", line.text):
            if body:
                break
        elif line.text.strip() in ("Legend:", "NIC Legend:"):
            break
        else:
            body.append(line)
    return body


def _parse_row(line: _Line, header: _Header) -> tuple[str, _Row]:
    words = list(re.finditer(r"\S+", line.text))
    name = words[0].group()
    if name not in header.devices:
        raise line.error(f"row {name!r} has no column; columns are {', '.join(header.devices)}")
    cells, used = _read_cells(line, words[1:], len(header.devices))
    row = dict(zip(header.devices, cells, strict=True))
    if [device for device, cell in row.items() if cell == "X"] != [name]:
        raise line.error(f"row {name} must have its one X in column {name}")
    tail = words[1 + used :]
    if not name.startswith("GPU"):
        if tail:
            raise line.error(f"row {name} has more cells than there are columns")
        return name, _Row(line, row)
    return name, _Row(line, row, _read_tail(line, header, words[used].end(), tail))


def _read_cells(line: _Line, words: Sequence[re.Match[str]], count: int) -> tuple[list[str], int]:
    """The cells of the matrix and how many words they took; words of several cells are taken apart."""
    cells: list[str] = []
    used = 0
    while len(cells) < count and used < len(words) and _CELLS.fullmatch(words[used].group()):
        cells.extend(_CELL.findall(words[used].group()))
        used += 1
    if len(cells) != count:
        raise line.error(f"{len(cells)} cells where the header has {count} columns")
    return cells, used


def _read_tail(line: _Line, header: _Header, start: int, words: Sequence[re.Match[str]]) -> dict[str, str]:
    names = [name for name, _ in header.columns]
    if len(words) > len(names):
        raise line.error(f"{len(words)} values behind the matrix, columns are {', '.join(names)}")
    tail = _place_tail(line, header, start, words)
    if not tail[names[-1]] or sum(map(bool, tail.values())) != len(words):
        raise line.error(f"nothing below the last column ({names[-1]}): the row is cut")
    return tail


def _place_tail(line: _Line, header: _Header, start: int, words: Sequence[re.Match[str]]) -> dict[str, str]:
    """With a blank cell the rest must not move up: 0 is a node then, not a CPU."""
    names = [name for name, _ in header.columns]
    if len(words) == len(names):
        return dict(zip(names, (word.group() for word in words), strict=True))
    starts = {start: name for name, start in header.columns}
    if all(word.start() in starts for word in words):
        return dict.fromkeys(names, "") | {starts[word.start()]: word.group() for word in words}
    return _tail_by_tabs(line, names, _tabs_again(line, start, words))


def _tail_by_tabs(line: _Line, names: Sequence[str], text: str) -> dict[str, str]:
    """A blank cell is an empty field; a further tab before the last column is padding."""
    fields = [part.strip() for part in text.split("\t")[1:]]
    values = [*fields[: len(names) - 1], next(filter(None, fields[len(names) - 1 :]), "")]
    if len(values) != len(names):
        raise line.error(f"the row ends before column {names[len(values)]}")
    return dict(zip(names, values, strict=True))


def _tabs_again(line: _Line, start: int, words: Sequence[re.Match[str]]) -> str:
    """The end of the row as printed, from text in which each tab went to the next multiple of eight."""
    if "\t" in line.text[start:]:
        return line.text[start:]
    parts = []
    for word in words:
        tabs, odd = divmod(word.start() - start // 8 * 8, 8)
        if odd:
            raise line.error(f"{word.group()!r} stands below no column; is the row cut?")
        parts.append("\t" * tabs + word.group())
        start = word.end()
    return "".join(parts)


def _check_complete(header: _Header, rows: Mapping[str, _Row]) -> None:
    missing = [device for device in header.devices if device not in rows]
    cut = [device for device in missing if device.startswith("GPU") or len(missing) < len(_nics(header.devices))]
    if cut:
        raise header.line.error(f"column {cut[0]} has no row: the table is cut")


def _nics(devices: Iterable[str]) -> list[str]:
    return [device for device in devices if not device.startswith("GPU")]


def _check_symmetry(rows: Mapping[str, _Row]) -> None:
    for name, row in rows.items():
        for other, cell in row.cells.items():
            back = rows[other].cells[name] if other in rows else cell
            if cell != back and not cell.startswith("NV"):
                raise row.line.error(f"{name} to {other} is {cell}, but {other} to {name} is {back}")


def _legend(lines: Iterable[_Line]) -> dict[str, str]:
    matches = (_LEGEND.fullmatch(line.text) for line in lines)
    return {match[1]: match[2] for match in matches if match}


def _table(header: _Header, rows: Mapping[str, _Row], legend: Mapping[str, str]) -> TopoTable:
    nics = _nics(header.devices)
    if legend and set(legend) != set(nics):
        raise header.line.error(f"the NIC legend names {', '.join(legend)}, columns are {', '.join(nics)}")
    links = [
        Link(a=legend.get(a, a), b=legend.get(b, b), distance=Distance[row.cells[b]])
        for place, a in enumerate(header.devices)
        if (row := rows.get(a))
        for b in header.devices[place + 1 :]
        if b in nics
    ]
    gpus = [_gpu(name, rows[name]) for name in header.devices if name not in nics]
    return TopoTable(gpus=tuple(gpus), nics=tuple(legend.get(nic, nic) for nic in nics), links=tuple(links))


def _gpu(name: str, row: _Row) -> TopoGpu:
    values = {column: _ids_or_none(row.line, value) for column, value in row.tail.items()}
    if not values["cpus"] and not values.get("numa"):
        raise row.line.error(f"{name} has neither CPU nor NUMA affinity")
    own = values.get("gpu_numa") or ()
    return TopoGpu(
        name=name,
        cpus=values["cpus"] or (),
        numa=values.get("numa") or None,
        memory_node=own[0] if len(own) == 1 else None,
    )


def _ids_or_none(line: _Line, value: str) -> Ids | None:
    try:
        return None if value == "N/A" else parse_ids(value)
    except TopologyError as error:
        raise line.error(str(error)) from error
