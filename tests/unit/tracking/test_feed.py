"""Journals of several attempts and nodes are read on, in one order, with the same outcome each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.rundir import RunDir
from pipeline.tracking.feed import Feed, NodeBinding, journal_sizes
from pipeline.tracking.journal import CHUNK_BYTES, Event, JournalWriter, encode_event


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "r1")


def write(run: RunDir, attempt: int, node: str, *events: Event) -> None:
    with JournalWriter(run.attempt(attempt).journal(node)) as journal:
        for event in events:
            journal.append(event)


def metrics(step: int, value: float, time: float = 1.0) -> Event:
    return Event("metrics", time, "n1", 0, {"step": step, "values": {"loss": value}})


def test_the_earlier_attempt_stands_and_a_second_reading_finds_nothing(run: RunDir) -> None:
    write(run, 2, "n1", metrics(2, 20.0), metrics(3, 30.0))
    write(run, 1, "n1", metrics(1, 1.0), metrics(2, 2.0))
    feed = Feed(run)
    portion = feed.read({}, final=False)
    assert [(point.step, point.value) for point in portion.points] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert feed.curves.repeats_differ == 1
    assert portion.offsets == journal_sizes(run)
    assert feed.read(portion.offsets, final=False).points == []


def test_after_a_rewind_only_what_is_new_is_found(run: RunDir) -> None:
    write(run, 1, "n1", metrics(1, 1.0))
    offsets = Feed(run).read({}, final=False).offsets
    write(run, 1, "n1", metrics(1, 1.5), metrics(2, 2.0))
    feed = Feed(run)
    feed.rewind(offsets)
    assert [point.step for point in feed.read(offsets, final=False).points] == [2]
    assert (feed.curves.points, feed.curves.repeats_differ) == (2, 1)


def test_a_portion_can_be_read_again_exactly(run: RunDir) -> None:
    write(run, 1, "n1", metrics(1, 1.0))
    write(run, 1, "n2", metrics(2, 2.0))
    portion = Feed(run).read({}, final=False)
    write(run, 1, "n1", metrics(2, 99.0))
    assert Feed(run).read_to({}, portion.offsets) == portion


def test_an_attempt_is_read_to_its_end_before_the_next_one_begins(run: RunDir) -> None:
    filler = Event("note", 1.0, "n1", 0, {"text": "x" * 100_000})
    write(run, 1, "n1", *[filler] * (CHUNK_BYTES // 100_000 + 1), metrics(5, 1.0))
    write(run, 2, "n1", metrics(5, 2.0))
    feed, offsets, values = Feed(run), {}, []
    while (portion := feed.read(offsets, final=False)).offsets != offsets:
        offsets = portion.offsets
        values += [point.value for point in portion.points]
    assert values == [1.0]
    feed.rewind(offsets)
    assert feed.curves.repeats == 1


def test_damage_counts_when_it_is_still_there_at_the_next_look(run: RunDir) -> None:
    write(run, 1, "n1", metrics(1, 1.0))
    late = encode_event(metrics(2, 2.0))
    journal = run.attempt(1).journal("n1")
    before = journal.read_bytes()
    journal.write_bytes(before + b"\0" * (len(late) - 1) + b"\n")
    feed = Feed(run)
    assert feed.read({}, final=False).points == []
    journal.write_bytes(before + late)
    assert [point.step for point in feed.read({}, final=False).points] == [1, 2]
    journal.write_bytes(before + late + b"damaged\n")
    offsets = {"attempts/1/journal/n1.jsonl": len(before + late)}
    assert feed.read(offsets, final=False).offsets == offsets
    assert feed.read(offsets, final=False).offsets != offsets
    assert feed.facts.damaged_lines == 1


def test_facts_are_those_of_the_newest_attempt_that_tells_them(run: RunDir) -> None:
    write(run, 1, "a", Event("environment", 5.0, "a", 0, {"torch": "1"}))
    write(run, 1, "b", Event("environment", 4.0, "b", 1, {"torch": "1b"}))
    write(run, 2, "c", Event("environment", 9.0, "c", 0, {"torch": "2"}), Event("unheard-of", 10.0, "c", None, {}))
    feed = Feed(run)
    feed.read({}, final=False)
    assert feed.facts.environment == {"torch": "2"}
    assert (feed.facts.first_time, feed.facts.last_time) == (4.0, 10.0)
    assert feed.facts.nodes == {1: {"a", "b"}, 2: {"c"}}


def test_certificates_are_facts_of_their_attempt_and_node(run: RunDir) -> None:
    drift = ["cores: expected 112, found 56"]
    write(run, 1, "n1", Event("binding", 1.0, "n1", None, {"flags": ["EXACT"], "red": [], "drift": drift}))
    write(run, 1, "n2", Event("binding", 1.0, "n2", None, {"flags": ["FALLBACK", "EXACT"], "red": [9], "warnings": []}))
    feed = Feed(run)
    feed.read({}, final=True)
    assert feed.facts.bindings == {
        1: {
            "n1": NodeBinding(frozenset({"EXACT"}), False, tuple(drift)),
            "n2": NodeBinding(frozenset({"EXACT", "FALLBACK"}), True),
        }
    }
