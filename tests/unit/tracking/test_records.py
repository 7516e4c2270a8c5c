"""The record of a run: made when it is over, whole, and made again when the journals have grown."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.finished_runs import H200, finished_run

from pipeline.rundir import RunDir, read_json, write_json
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.tracking.records import current_record, make_record
from pipeline.types import RunRecord, RunState

WORDS = [*H200, "recipe.micro_batch=1", "recipe.global_batch=8"]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return finished_run(tmp_path, WORDS, 1.25, peak_gib=40.0)


def test_predicted_stands_beside_measured(run: RunDir) -> None:
    record = current_record(run)
    assert record == read_json(run.record_file, RunRecord)
    assert record.state is RunState.finished
    assert (record.measured.steps, record.measured.steady_steps) == (30, 20)
    assert record.measured.step_s == 1.25
    assert record.measured.tokens_per_s == pytest.approx(65536 / 1.25)
    assert [(one.name, one.measured) for one in record.outcomes] == [
        ("step time", 1.25),
        ("throughput", pytest.approx(65536 / 1.25)),
        ("allocated memory", 40.0),
    ]
    assert all(abs(one.error) < 0.2 for one in record.outcomes)
    assert record.calibration == run.read_plan().throughput.calibration  # type: ignore[union-attr]
    assert record.binding_flags == ("EXACT",)
    assert record.versions["torch"] == "2.11.0"


def test_it_is_made_again_only_when_the_journals_have_grown(run: RunDir) -> None:
    current_record(run)
    before = run.record_file.stat().st_mtime_ns
    current_record(run)
    assert run.record_file.stat().st_mtime_ns == before
    with JournalWriter(run.attempt(1).journal("n2")) as journal:
        journal.append(Event("memory", 20.0, "n2", 1, {"step": 20, "allocated_gib": 44.0, "reserved_gib": 45.0}))
    assert max(use.allocated_gib for use in current_record(run).measured.memory) == 44.0
    assert read_json(run.record_file, RunRecord).measured.memory[-1].rank == 1


def test_a_run_that_is_not_over_leaves_no_file(run: RunDir) -> None:
    run.attempt(1).end_file.unlink()
    assert current_record(run).measured.steps == 30
    assert not run.record_file.exists()


def test_steps_of_a_second_attempt_count_once_and_warm_up_again(run: RunDir) -> None:
    second = run.attempt(2)
    with JournalWriter(second.journal("n1")) as journal:
        for step in range(21, 61):
            values = {"throughput/step_time_s": 30.0 if step == 21 else 1.35}
            journal.append(Event("metrics", 100.0 + step, "n1", 0, {"step": step, "values": values}))
    write_json(second.end_file, run.attempt(1).read_end())
    measured = make_record(run).measured
    assert measured.steps == 60
    assert measured.steady_steps == 50
    assert measured.step_s == 1.35


def test_what_is_no_number_is_not_measured(tmp_path: Path) -> None:
    run = finished_run(tmp_path, WORDS, 1.25, steps=0)
    with JournalWriter(run.attempt(1).journal("n1")) as journal:
        for step, seconds in enumerate(("x", -1.0, None, True), start=1):
            values = {"throughput/step_time_s": seconds}
            journal.append(Event("metrics", 1.0, "n1", 0, {"step": step, "values": values}))
        journal.append(Event("memory", 1.0, "n1", 0, {"allocated_gib": "much"}))
    record = make_record(run)
    assert record.measured.steps == 0
    assert record.measured.step_s is None
    assert record.outcomes == ()


def test_another_versions_record_is_replaced(run: RunDir) -> None:
    run.record_file.write_text('{"schema": 1, "data": {"run_id": "old"}}', encoding="utf-8")
    assert current_record(run).run_id == run.run_id
    assert read_json(run.record_file, RunRecord).run_id == run.run_id
