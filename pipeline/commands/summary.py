"""What came of a run, in a few rows: its end, loss, places, and what was measured beside what was planned."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console

from launchers.attempts import journal_events
from launchers.status import RunStatus
from pipeline.commands.program import name_of, own_name
from pipeline.planning.outcome import outcome_text
from pipeline.rundir import RunDir
from pipeline.tracking.cursor import read_cursor
from pipeline.tracking.journal import Event
from pipeline.tracking.records import current_record
from pipeline.tracking.store import store_of

Row = tuple[str, str]


def print_summary(run: RunDir, status: RunStatus, console: Console) -> None:
    """Prints the rows of a run that is over."""
    console.print()
    for name, value in _rows(run, status):
        console.print(f"{name:<12} {value}", soft_wrap=True, markup=False)


def _rows(run: RunDir, status: RunStatus) -> Iterator[Row]:
    attempt = run.last_attempt()
    events = journal_events(attempt) if attempt else []
    yield "run", run.run_id
    yield "state", f"{status.state.value}: {status.message}"
    yield from _loss_rows(events)
    yield from _outcome_rows(run)
    if status.end and status.end.first:
        yield from (("last lines", line) for line in status.end.first.tail[-5:])
    yield from _binding_rows(events)
    yield "directory", str(run.path)
    yield from _mlflow_rows(run)


def _curve(events: Sequence[Event], key: str) -> list[tuple[object, float]]:
    """(step, value) of one metric."""
    steps = [(event.data["step"], event.data["values"]) for event in events if event.kind == "metrics"]
    return [(step, values[key]) for step, values in steps if isinstance(values, dict) and key in values]


def _loss_rows(events: Sequence[Event]) -> Iterator[Row]:
    losses = _curve(events, "train/loss")
    if losses:
        (first_step, first), (last_step, last) = losses[0], losses[-1]
        yield "loss", f"{first:.4f} at step {first_step}, {last:.4f} at step {last_step}"


def _outcome_rows(run: RunDir) -> Iterator[Row]:
    """Planned against measured, where the plan had an estimate and there are steady steps."""
    record = current_record(run)
    yield from (("plan", outcome_text(one)) for one in record.outcomes)
    if record.outcomes and record.measured.steady_steps:
        yield "rests on", f"{record.measured.steady_steps} steady steps; calibration {record.calibration}"


def _binding_rows(events: Sequence[Event]) -> Iterator[Row]:
    """How the ranks of each node were bound; a rank that isn't where it should be is named."""
    for event in events:
        if event.kind == "binding":
            flags, red = event.data.get("flags"), event.data.get("red")
            words = ", ".join(map(str, flags)) if isinstance(flags, list) else ""
            wrong = f"; NOT AS PLANNED: ranks {', '.join(map(str, red))}" if isinstance(red, list) and red else ""
            yield "binding", f"{event.node}: {words}{wrong}"
            drift = event.data.get("drift")
            yield from (("profile", f"{event.node}: {one}") for one in (drift if isinstance(drift, list) else ()))


def _mlflow_rows(run: RunDir) -> Iterator[Row]:
    """Where MLflow shows the run, as far as it was told."""
    mlflow_run_id = read_cursor(run, store_of(run).uri).mlflow_run_id
    if mlflow_run_id:
        yield "MLflow run", mlflow_run_id
    else:
        yield "MLflow", f"not told yet; `{own_name()} sync {name_of(run)}` does it"
    yield "see it", f"{own_name()} ui --run-root {shlex.quote(str(run.path.parent))}"
