"""The journal keeps what was written, says what it lost, and lives with torn lines."""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import RunDirError
from pipeline.tracking.journal import Event, JournalWriter, encode_event, read_events

_TEXT = st.text(max_size=8) | st.sampled_from(
    ["NaN", "\\NaN", "\\\\Infinity", "-Infinity", '","crc":"', "\ud800", "\n"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_EVENTS = st.builds(
    Event, _TEXT, st.floats(), _TEXT, st.none() | st.integers(0, 1 << 20), st.dictionaries(_TEXT, _VALUES, max_size=3)
)


def test_what_is_written_is_read_back_with_its_non_finite_floats(tmp_path: Path) -> None:
    events = [
        Event("metrics", 1.5, "n1", 0, {"step": 1, "values": {"loss": math.inf, "low": -math.inf, "name": "NaN"}}),
        Event("warning", 2.0, "n1", None, {"message": "two\nlines"}),
    ]
    write(tmp_path / "deep" / "n1.jsonl", events)
    chunk = read_events(tmp_path / "deep" / "n1.jsonl")
    assert list(chunk.events) == events
    assert chunk.damaged == ()
    assert chunk.offset == (tmp_path / "deep" / "n1.jsonl").stat().st_size


@settings(max_examples=200, deadline=None)
@given(_EVENTS)
def test_every_event_survives_the_round_trip(event: Event) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "n.jsonl", [event])
        chunk = read_events(Path(folder) / "n.jsonl")
    assert [repr(found) for found in chunk.events] == [repr(event)]  # repr: nan is not equal to itself


def test_a_line_is_json_that_starts_with_the_version_and_ends_with_the_checksum_of_the_rest() -> None:
    line = encode_event(Event("phase", 1.0, "n1", 3, {"name": "build", "seconds": math.nan}))
    fields = json.loads(line)
    assert next(iter(fields)) == "schema"
    assert list(fields)[-1] == "crc"
    assert fields["data"]["seconds"] == "NaN"
    body = line[: line.rindex(b',"crc"')]
    assert int(fields["crc"], 16) == zlib.crc32(body)


def test_a_journal_cut_at_any_byte_loses_only_its_last_line_and_can_be_written_on(tmp_path: Path) -> None:
    events = [Event("metrics", float(step), "n1", 0, {"step": step, "values": {"loss": math.nan}}) for step in range(3)]
    lines = [encode_event(event) for event in events]
    whole = b"".join(lines)
    path = tmp_path / "n1.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(cut >= len(b"".join(lines[: count + 1])) for count in range(3))
        torn = read_events(path)
        assert (len(torn.events), torn.damaged) == (kept, ())
        assert torn.offset == len(b"".join(lines[:kept]))
        write(path, [Event("stop", 9.0, "n1", None, {})])
        grown = read_events(path, torn.offset)
        assert grown.events[-1].kind == "stop"
        # A line that lacks nothing but its newline is whole again once the next writer has begun a new one.
        complete_but_for_newline = kept < 3 and cut == len(b"".join(lines[: kept + 1])) - 1
        assert len(grown.events) == 1 + complete_but_for_newline
        assert len(grown.damaged) == (cut > torn.offset and not complete_but_for_newline)


@settings(max_examples=50, deadline=None)
@given(st.lists(_EVENTS, min_size=1, max_size=4), st.data())
def test_one_changed_byte_costs_at_most_the_lines_it_touches(events: list[Event], data: st.DataObject) -> None:
    content = bytearray(b"".join(encode_event(event) for event in events))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "n.jsonl"
        path.write_bytes(bytes(content))
        chunk = read_events(path)
        lost = len(events) - len(chunk.events)
        assert lost in (1, 2)
        assert len(chunk.damaged) >= 1 or chunk.offset < len(content)


def test_a_damaged_line_is_skipped_and_reported_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "n1.jsonl"
    first, second = (encode_event(Event("phase", float(number), "n1", 0, {})) for number in range(2))
    path.write_bytes(first + b"\0" * 40 + b"\n" + b"\n" + second)
    chunk = read_events(path)
    assert [event.time for event in chunk.events] == [0.0, 1.0]
    assert chunk.damaged == (len(first), len(first) + 41)


def test_reading_goes_on_where_it_stopped_in_portions(tmp_path: Path) -> None:
    path = tmp_path / "n1.jsonl"
    events = [Event("phase", float(number), "n1", 0, {}) for number in range(10)]
    write(path, events)
    offset, found = 0, []
    while (chunk := read_events(path, offset, limit=1)).events:
        found += chunk.events
        assert len(chunk.events) == 1
        offset = chunk.offset
    assert found == events


def test_a_journal_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert read_events(tmp_path / "n1.jsonl").events == ()


def test_a_journal_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "n1.jsonl"
    body = b'{"schema":2,"kind":"x"'
    path.write_bytes(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    with pytest.raises(RunDirError, match=r"n1\.jsonl: journal of version 2"):
        read_events(path)


def write(path: Path, events: list[Event]) -> None:
    with JournalWriter(path) as journal:
        for event in events:
            journal.append(event)
        journal.sync()
