"""A run as it goes: the live line, then the summary."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from launchers.status import RunStatus, run_status, wait_until_over
from pipeline.commands.program import name_of, own_name
from pipeline.commands.summary import print_summary
from pipeline.commands.tracking import sync_quietly
from pipeline.rundir import RunDir
from pipeline.tracking.cursor import read_cursor
from pipeline.tracking.journal import Event, read_events
from pipeline.tracking.store import store_of
from pipeline.tracking.view import is_complete
from pipeline.types import RunState

POLL_S = 0.3
STATUS_EVERY_S = 2.0
PLAIN_EVERY_S = 5.0
"""How often a line is printed where there is no terminal to redraw."""

EXIT_CODES = {
    RunState.finished: 0,
    RunState.failed: 5,
    RunState.timeout: 5,
    RunState.preempted: 5,
    RunState.unknown: 5,
    RunState.cancelled: 6,
}


def follow(run: RunDir, steps: int) -> int:
    """Shows a run until it is over; Ctrl-C leaves the run alone. The exit code tells how it ended."""
    console = Console(highlight=False)
    try:
        status = _follow(run, steps, console)
    except KeyboardInterrupt:
        name, run_id = own_name(), name_of(run)
        hint = f"\nthe run goes on; `{name} logs -f {run_id}` follows, `{name} cancel {run_id}` ends it"
        console.print(hint, soft_wrap=True)
        return 130
    finish(status)
    print_summary(run, status, console)
    return EXIT_CODES[status.state]


def finish(status: RunStatus) -> None:
    """What is left to do once a run has its end: MLflow is told by the run itself, or here where that was cut off."""
    if not status.state.is_final:
        return
    if not status.reaped:
        wait_until_over(status, status.run.read_experiment().tracking.finish_timeout_s + 10)
    if status.end and not is_complete(status.run, read_cursor(status.run, store_of(status.run).uri)):
        sync_quietly(status.run)


def _follow(run: RunDir, steps: int, console: Console) -> RunStatus:
    view = _Live(console, steps) if console.is_terminal else _Plain(console, steps)
    reader = _NewEvents(run)
    with view:
        status, asked = run_status(run), time.monotonic()
        while not status.state.is_final:
            for event in reader.read():
                view.show(event)
            view.say(status.message)
            time.sleep(POLL_S)
            if time.monotonic() - asked > STATUS_EVERY_S:
                status, asked = run_status(run), time.monotonic()
        for event in reader.read():
            view.show(event)
    return status


class _NewEvents:
    """Events of the last attempt that were not seen yet."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offsets: dict[Path, int] = {}

    def read(self) -> list[Event]:
        """What came since the last call."""
        attempt = self._run.last_attempt()
        events: list[Event] = []
        for path in sorted(attempt.journal_dir.glob("*.jsonl")) if attempt else []:
            chunk = read_events(path, self._offsets.get(path, 0))
            self._offsets[path] = chunk.offset
            events += chunk.events
        return events


class _Live:
    """One line that is redrawn."""

    def __init__(self, console: Console, steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._steps = steps
        self._task: TaskID | None = None

    def __enter__(self) -> _Live:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=self._steps, numbers="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        """What the run is doing while there are no steps yet."""
        assert self._task is not None
        if not self._progress.tasks[0].completed:
            self._progress.update(self._task, description=message)

    def show(self, event: Event) -> None:
        """Takes an event into the line."""
        assert self._task is not None
        text = _event_text(event)
        if event.kind == "metrics":
            step = event.data["step"]
            assert isinstance(step, int)
            self._progress.update(self._task, description="training", completed=step, numbers=_numbers(event))
        elif text:
            self._progress.console.print(text)


class _Plain:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._said = ""
        self._printed_at = 0.0
        self._started: tuple[float, int] | None = None

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, message: str) -> None:
        """What the run is doing, once."""
        if message and message != self._said:
            self._said = message
            self._print(message)

    def show(self, event: Event) -> None:
        """Prints a step every few seconds, and all that is not a step."""
        if event.kind != "metrics":
            text = _event_text(event)
            if text:
                self._print(text)
            return
        step = event.data["step"]
        assert isinstance(step, int)
        self._started = self._started or (event.time, step)
        if step == self._steps or time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self._print(f"step {step}/{self._steps}  {_numbers(event)}  {self._left(event.time, step)}")

    def _left(self, now: float, step: int) -> str:
        assert self._started is not None
        since, first = self._started
        if step <= first:
            return ""
        seconds = (now - since) / (step - first) * (self._steps - step)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _numbers(event: Event) -> str:
    values = event.data["values"]
    assert isinstance(values, dict)
    loss, speed = values.get("train/loss"), values.get("throughput/tokens_per_s")
    shown = [f"loss {loss:.4f}"] if isinstance(loss, float) else []
    return "  ".join([*shown, f"{speed:,.0f} tokens/s"] if isinstance(speed, float) else shown)


def _event_text(event: Event) -> str:
    match event.kind:
        case "warning":
            return f"warning: {event.data.get('message')}"
        case "stop":
            return f"stopping: {event.data.get('reason')}"
        case "phase" if event.rank == 0:
            return f"{str(event.data.get('name')).replace('_', ' ')}: {event.data.get('seconds'):.1f} s"
        case _:
            return ""
