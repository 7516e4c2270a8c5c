"""The rows at the end of a run, from a run directory."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from launchers.status import RunStatus
from pipeline.__main__ import parser
from pipeline.commands.request import build_request, write_run
from pipeline.commands.summary import print_summary
from pipeline.rundir import create_run_dir
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.types import RunState

GPU = ["hardware=dgx_h200", "model=llama3_8b", "precision=bf16", "recipe.global_batch=64"]


def summary(overrides: list[str], root: Path, events: list[Event]) -> str:
    """What is printed for a run with these journal events."""
    request = build_request(parser().parse_args(["plan", *overrides, f"run_root={root}"]))
    run = create_run_dir(root, "x")
    write_run(request, run)
    with JournalWriter(run.attempt(1).journal("n1")) as journal:
        for event in events:
            journal.append(event)
    console = Console(file=io.StringIO(), width=300)
    status = RunStatus(run=run, state=RunState.finished, message="done", handle=None, end=None)
    print_summary(run, status, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def step(number: int, seconds: float) -> Event:
    """One step's metrics."""
    values = {"train/loss": 5.0 - number / 10, "throughput/step_time_s": seconds}
    return Event("metrics", float(number), "n1", 0, {"step": number, "values": values})


def test_planned_stands_beside_measured(tmp_path: Path) -> None:
    shown = summary(GPU, tmp_path, [step(1, 90.0), *(step(number, 2.0) for number in range(2, 9))])
    assert "step time: predicted" in shown
    assert "measured 2 s" in shown
    assert "4.9000 at step 1, 4.2000 at step 8" in shown


def test_without_an_estimate_or_steady_steps_nothing_is_claimed(tmp_path: Path) -> None:
    assert "predicted" not in summary(["experiment=demo"], tmp_path, [step(number, 2.0) for number in range(1, 9)])
    assert "predicted" not in summary(GPU, tmp_path, [step(1, 90.0)])


def test_a_rank_that_is_not_where_it_was_planned_is_named(tmp_path: Path) -> None:
    event = Event("binding", 1.0, "n1", None, {"flags": ["EXACT"], "red": [2], "warnings": []})
    assert "NOT AS PLANNED: ranks 2" in summary(["experiment=demo"], tmp_path, [event])
