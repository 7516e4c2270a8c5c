"""status, logs, wait and cancel: everything about runs that were submitted, from their directories."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launchers.launcher import launcher_for
from launchers.overview import overviews
from launchers.status import RunStatus, progress, run_status, run_statuses
from pipeline.commands.follow import EXIT_CODES, finish
from pipeline.commands.program import own_name
from pipeline.commands.tracking import sync_quietly
from pipeline.errors import UserError
from pipeline.run_index import RunIndex
from pipeline.rundir import AttemptDir, RunDir, find_run, list_runs, run_names, to_jsonable, write_json
from pipeline.tracking.annotations import read_annotations, when
from pipeline.types import RunState

POLL_S = 1.0
CANCEL_WAIT_S = 60.0
LISTED = 20


def status(arguments: argparse.Namespace) -> int:
    """One run in full, or the newest of a run root as a table."""
    root = Path(arguments.run_root)
    if arguments.all:
        return _status_of_all(arguments, root)
    runs = [find_run(root, wanted) for wanted in arguments.runs] or list(list_runs(root))[-LISTED:]
    statuses = run_statuses(runs)
    for one in statuses:
        if one.reaped:  # found out just now: nobody else will tell MLflow
            sync_quietly(one.run)
    if arguments.json:
        print(json.dumps([_as_json(one) for one in statuses], indent=1))
    elif arguments.runs:
        for one in statuses:
            _print_one(one)
    else:
        _print_table(statuses, root)
    return 0


def wait(arguments: argparse.Namespace) -> int:
    """Until all named runs are over; the exit code is that of the worst end."""
    runs = [find_run(Path(arguments.run_root), wanted) for wanted in arguments.runs]
    deadline = time.monotonic() + arguments.timeout if arguments.timeout else float("inf")
    statuses = run_statuses(runs)
    while not all(_is_settled(one) for one in statuses):
        if time.monotonic() > deadline:
            raise UserError(f"--timeout: {arguments.timeout:g} s are over and not all runs; ask again later")
        time.sleep(POLL_S)
        statuses = run_statuses(runs)
    for one in statuses:
        finish(one)
        print(f"{one.run.run_id}  {one.state.value}  {one.message}")
    return max(EXIT_CODES.get(one.state, 5) for one in statuses)


def cancel(arguments: argparse.Namespace) -> int:
    """Ends runs, whether they wait, run or were half submitted."""
    for wanted in arguments.runs:
        _cancel_one(find_run(Path(arguments.run_root), wanted))
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """What the ranks printed; with --follow until the run is over."""
    run = find_run(Path(arguments.run_root), arguments.run)
    attempt = run.last_attempt()
    if attempt is None:
        raise UserError(f"run {run.run_id} has no attempt yet, so no log")
    reader = _LogReader(attempt, node=arguments.node, rank=arguments.rank)
    over = not arguments.follow
    while True:
        for line in reader.new_lines():
            sys.stdout.write(line)
        sys.stdout.flush()
        if over:
            break
        over = run_status(run).state.is_final
        time.sleep(POLL_S)
    if not reader.found:
        _print_launcher_output(attempt)
    return 0


# --------------------------------------------------------------------------- status


def _is_settled(one: RunStatus) -> bool:
    """Nothing more will happen: over, or never submitted."""
    return one.state.is_final or one.state in (RunState.prepared, RunState.held)


def _as_json(one: RunStatus) -> dict[str, object]:
    attempt, said = one.run.last_attempt(), read_annotations(one.run)
    return {
        "run_id": one.run.run_id,
        "run_dir": str(one.run.path),
        "state": one.state.value,
        "message": one.message,
        "job_id": one.handle.job_id if one.handle else None,
        "attempt": attempt.number if attempt else None,
        "progress": progress(attempt) if attempt else {},
        "end": to_jsonable(one.end) if one.end else None,
        "tags": said.tags,
        "notes": to_jsonable(list(said.notes)),
    }


def _status_of_all(arguments: argparse.Namespace, root: Path) -> int:
    """Every run in a line: those that are over from the index, one question to each scheduler about the rest."""
    index = RunIndex(root)
    if arguments.rebuild:
        index.drop_all()
    run_ids = run_names(root)
    index.keep_only(run_ids)
    found = overviews(root, run_ids, index).values()
    states = sorted({state.value for state in RunState})
    if arguments.state and arguments.state.upper() not in states:
        raise UserError(f"--state: no state {arguments.state!r}; there are: {', '.join(states)}")
    shown = [one for one in found if not arguments.state or one.state.value == arguments.state.upper()]
    if arguments.json:
        rows = [{"run_id": one.run_id, "state": one.state.value, "job_id": one.job_id, "message": one.message}
                for one in shown]  # fmt: skip
        print(json.dumps(rows, indent=1))
        return 0
    for one in shown:
        print(f"{one.run_id}  {one.state.value:<9}  {one.job_id:<10}  {one.message}")
    print(", ".join(f"{count} {state}" for state, count in Counter(one.state.value for one in found).most_common()))
    return 0


def _print_one(one: RunStatus) -> None:
    attempt = one.run.last_attempt()
    newest = progress(attempt) if attempt else {}
    rows = [("run", one.run.run_id), ("state", one.state.value), ("message", one.message)]
    if one.handle:
        rows.append(("job", f"{one.handle.job_id} ({one.handle.launcher.value}), attempt {one.handle.attempt}"))
    if newest:
        rows.append(("progress", _progress_text(one.run, newest)))
    if one.end and one.end.first:
        rows += [("last lines", line) for line in one.end.first.tail[-10:]]
    said = read_annotations(one.run)
    rows += [("tag", f"{key}={value}") for key, value in said.tags.items()]
    rows += [("note", f"{when(note)} {note.by}: {note.text}".replace("\n", "\n" + " " * 13)) for note in said.notes]
    rows.append(("directory", str(one.run.path)))
    for name, value in rows:
        print(f"{name:<12} {value}")


def _progress_text(run: RunDir, newest: dict[str, float]) -> str:
    parts = [f"step {newest['step']:.0f} of {run.read_experiment().recipe.steps}"]
    if "train/loss" in newest:
        parts.append(f"loss {newest['train/loss']:.4f}")
    if "throughput/tokens_per_s" in newest:
        parts.append(f"{newest['throughput/tokens_per_s']:,.0f} tokens/s")
    return ", ".join(parts)


def _print_table(statuses: list[RunStatus], root: Path) -> None:
    if not statuses:
        print(f"no runs in {root}; `{own_name()} run experiment=demo` makes one")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "state", "job", "step", "loss", "message"):
        table.add_column(heading, no_wrap=heading in ("run", "state"), overflow="fold")
    for one in statuses:
        attempt = one.run.last_attempt()
        newest = progress(attempt) if attempt else {}
        table.add_row(
            one.run.run_id,
            one.state.value,
            one.handle.job_id if one.handle else "",
            f"{newest['step']:.0f}" if "step" in newest else "",
            f"{newest['train/loss']:.4f}" if "train/loss" in newest else "",
            one.message,
        )
    # Into a pipe or a file a row is one line, however long.
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 250).print(table)


# --------------------------------------------------------------------------- cancel


def _cancel_one(run: RunDir) -> None:
    one = run_status(run)
    if one.state.is_final:
        print(f"{run.run_id}  was over already: {one.state.value}  {one.message}")
        return
    attempt = run.last_attempt()
    submission = run.read_submission() if run.submission_file.exists() else None
    launcher = launcher_for(submission.launcher) if submission else None
    job_id = one.handle.job_id if one.handle else launcher.find(submission) if launcher and submission else None
    if attempt is None or launcher is None or job_id is None:
        print(f"{run.run_id}  was never submitted; there is nothing to end")
        return
    # Written first: the supervisors tell a cancelled run from one that a signal hit by this file.
    write_json(attempt.cancel_file, {"by": getpass.getuser(), "time": time.time()})
    launcher.cancel(job_id, one.handle)
    _print_cancelled(_wait_for_end(run))


def _wait_for_end(run: RunDir) -> RunStatus:
    deadline = time.monotonic() + CANCEL_WAIT_S
    one = run_status(run)
    while not _is_settled(one) and time.monotonic() < deadline:
        time.sleep(POLL_S / 2)
        one = run_status(run)
    return one


def _print_cancelled(one: RunStatus) -> None:
    finish(one)
    print(f"{one.run.run_id}  {one.state.value}  {one.message}")


# --------------------------------------------------------------------------- logs


class _LogReader:
    """New lines of the logs of an attempt's nodes."""

    def __init__(self, attempt: AttemptDir, *, node: str | None, rank: int | None) -> None:
        self._attempt = attempt
        self._node = node
        self._wanted = re.compile(rf"\S+ \[{rank}\] ") if rank is not None else None
        self._offsets: dict[Path, int] = {}

    @property
    def found(self) -> bool:
        """Whether any node has written a log."""
        return bool(self._offsets)

    def new_lines(self) -> Iterator[str]:
        """Whole lines that came since the last call, node by node."""
        paths = sorted(path for path in self._attempt.logs_dir.glob("*.log") if path.stem not in ("session", "sync"))
        several = len(paths) > 1
        for path in paths:
            if self._node is None or path.stem == self._node:
                for line in self._read(path):
                    if self._wanted is None or self._wanted.match(line):
                        yield f"{path.stem} {line}" if several else line

    def _read(self, path: Path) -> list[str]:
        with path.open("rb") as stream:
            stream.seek(self._offsets.get(path, 0))
            whole, end, _ = stream.read().rpartition(b"\n")
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(end)
        return [f"{line}\n" for line in whole.decode("utf-8", errors="replace").split("\n")] if end else []


def _print_launcher_output(attempt: AttemptDir) -> None:
    """A run that ended before its supervisors wrote a log: what the launcher itself has printed."""
    for path in sorted(attempt.logs_dir.glob("*.out")) + sorted(attempt.logs_dir.glob("session.log")):
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if text:
            print(f"{path.name}\n{text}")
