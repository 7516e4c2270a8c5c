"""Run directories: names nobody shares, files that are whole, errors that name the file."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.errors import RunDirError, RunNotFound, UserError
from pipeline.planning.plan import make_plan
from pipeline.rundir import (
    RunDir,
    create_run_dir,
    find_run,
    list_runs,
    new_run_id,
    read_json,
    read_yaml,
    slug,
    write_json,
    write_text,
    write_yaml,
)
from pipeline.types import End, Experiment, Plan, RankExit, RunState


def test_runs_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    made: list[RunDir] = []
    threads = [threading.Thread(target=lambda: made.append(create_run_dir(tmp_path, "demo"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.run_id for run in made}) == 16
    assert len(list(list_runs(tmp_path))) == 16


def test_run_ids_sort_by_time() -> None:
    early, late = datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.datetime(2026, 1, 2, 3, 4, 6)
    assert new_run_id("b", early) < new_run_id("a", late)


@pytest.mark.parametrize(
    ("name", "expected"), [("a b/c", "a-b-c"), ("../..", "run"), ("x" * 99, "x" * 40), ("", "run")]
)
def test_a_name_becomes_part_of_a_path(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_experiment_and_plan_survive_the_files(tmp_path: Path) -> None:
    experiment = load(["experiment=demo", 'cluster.sbatch.constraint="a&b"']).experiment
    plan = make_plan(experiment)
    write_yaml(tmp_path / "config.yaml", experiment)
    write_json(tmp_path / "plan.json", plan)
    assert read_yaml(tmp_path / "config.yaml", Experiment) == experiment
    assert read_json(tmp_path / "plan.json", Plan) == plan


def test_an_end_survives_its_file(tmp_path: Path) -> None:
    seen = RankExit(rank=1, node="n2", exit_code=None, signal=9, stopped=False, tail=("ä", ""), time=1.5)
    end = End(state=RunState.failed, message="m", first=seen, time=2.0)
    write_json(tmp_path / "end.json", end)
    assert read_json(tmp_path / "end.json", End) == end


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "can't be read"),
        ('{"schema": 99, "data": {}}', "schema version 99"),
        ("[]", "schema version None"),
        ('{"schema": 1, "data": {"state": "FAILED"}}', "does not hold a End"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "end.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunDirError, match=said) as caught:
        read_json(path, End)
    assert str(path) in str(caught.value)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_finding_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there are: none"):
        find_run(tmp_path, "last")
    first, second = create_run_dir(tmp_path, "demo"), create_run_dir(tmp_path, "demo")
    newest = max(first, second, key=lambda run: run.run_id)
    assert find_run(tmp_path, "last") == newest
    assert find_run(tmp_path, first.run_id) == first
    assert find_run(tmp_path, first.run_id[-6:]) == first
    with pytest.raises(RunNotFound, match="not unique"):
        find_run(tmp_path, first.run_id[:4])
    with pytest.raises(RunNotFound, match=r"no run 'nope'.*demo"):
        find_run(tmp_path, "nope")


def test_a_run_root_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="run_root"):
        create_run_dir(tmp_path / "file" / "runs", "demo")
