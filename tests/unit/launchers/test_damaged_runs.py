"""A run directory that can't be read is UNKNOWN and named; the runs beside it keep their states."""

from __future__ import annotations

from pathlib import Path

from launchers.status import run_statuses
from pipeline.rundir import create_run_dir, write_json
from pipeline.types import End, RunState


def test_one_damaged_run_hides_no_other(tmp_path: Path) -> None:
    good, torn, odd = (create_run_dir(tmp_path, name) for name in ("good", "torn", "odd"))
    write_json(good.attempt(1).end_file, End(state=RunState.finished, message="done", first=None, time=1.0))
    torn.attempt(1).path.mkdir(parents=True)
    torn.attempt(1).end_file.write_text("{", encoding="utf-8")
    odd.attempt(1).path.mkdir(parents=True)
    odd.submission_file.write_text("[]", encoding="utf-8")
    states = run_statuses([good, torn, odd])
    assert [one.state for one in states] == [RunState.finished, RunState.unknown, RunState.unknown]
    assert str(torn.path) in states[1].message
    assert str(odd.path) in states[2].message
