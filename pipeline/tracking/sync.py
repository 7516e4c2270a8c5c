"""Uploads a run directory to MLflow until all of it is there.

    python -P -m pipeline.tracking.sync RUN_DIR [--follow]

Nothing in MLflow is a source: delete `sync.json`, or the whole store, and the next sync makes the same run again.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import HimoriError, RunNotFound
from pipeline.rundir import AttemptDir, RunDir
from pipeline.tracking.annotations import read_annotations
from pipeline.tracking.cursor import Cursor, read_cursor, write_cursor
from pipeline.tracking.feed import Facts, Feed, Portion, journal_sizes
from pipeline.tracking.parents import find_parent, point_of, point_tags
from pipeline.tracking.patience import LOCKED_S, Following, Once, Patience
from pipeline.tracking.records import current_record
from pipeline.tracking.store import file_lock, store_of, sync_here
from pipeline.tracking.tracker import Tracker
from pipeline.tracking.view import Ending, is_complete, read_view, split_long
from pipeline.types import End, RunState

LARGEST_PROFILE_BYTES = 256 << 20
POLL_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncResult:
    """What of a run is in the store."""

    run_id: str
    store: str
    """URI of the store."""
    experiment_id: str
    mlflow_run_id: str
    """Empty while there is nothing to show, as for a run that waits in the queue."""
    complete: bool
    """Whether the newest attempt is over and all of it is uploaded."""
    points: int
    repeats: int
    """Points that came again in a later attempt and were not uploaded."""
    repeats_differ: int
    damaged_lines: int
    warnings: tuple[str, ...] = ()
    """What could not be uploaded though the store answers."""


class Syncer:
    """Uploads one run, pass by pass; several processes may do so, they take turns."""

    def __init__(self, run: RunDir, patience: Patience) -> None:
        self._run = run
        self._patience = patience
        self._view = read_view(run)
        self._user = self._view.provenance.user if self._view.provenance else ""
        self._store = store_of(run)
        self._feed = Feed(run)
        self._cursor = Cursor(store="")
        self._tracker: Tracker | None = None
        self._shown: dict[str, str] = {}
        self._of_sweep: dict[str, str] = {}
        self._status = ""
        self._warnings: list[str] = []

    def sync(self) -> SyncResult:
        """Uploads what is new; raises TrackingError when patience is at its end first."""
        since = time.monotonic()
        with file_lock(self._run.path / ".sync.lock", lambda: self._patience.left_s(since, unanswered_s=LOCKED_S)):
            return self._sync()

    def _sync(self) -> SyncResult:
        attempt = self._run.last_attempt()
        # Read before the journals are: what was written before the end is then in them.
        end = None if attempt is None else attempt.read_end()
        self._catch_up()
        if attempt is not None and (end is not None or any(journal_sizes(self._run).values())):
            tracker = self._tracker or self._open(attempt, end)
            self._upload(tracker, final=end is not None)
            self._show(tracker, attempt, Ending(attempt.number, end, attempt.number in self._feed.facts.nodes))
        return _result(self._run, self._cursor, complete=end is not None, warnings=self._warnings)

    def _catch_up(self) -> None:
        """Starts over from `sync.json` when it isn't what this process wrote last."""
        cursor = read_cursor(self._run, self._store.uri)
        if cursor != self._cursor:
            self._tracker = None
            self._cursor = cursor
            self._feed.rewind(cursor.offsets)

    def _open(self, attempt: AttemptDir, end: End | None) -> Tracker:
        """Connects, and finds or creates the MLflow run; one that is not the cursor's gets everything again."""
        tracker = Tracker(self._store, self._patience)
        known = self._cursor.mlflow_run_id
        if not (known and tracker.is_there(known)):
            experiment = self._view.experiment
            experiment_id = tracker.find_experiment(experiment.tracking.experiment or experiment.name)
            start_ms = _start_ms(self._run, attempt, end)
            mlflow_run_id = tracker.find_or_create_run(experiment_id, self._run.run_id, start_ms, user=self._user)
            self._feed.rewind({})
            self._save(Cursor(store=self._store.uri, experiment_id=experiment_id, mlflow_run_id=mlflow_run_id))
        self._shown, self._status = {}, ""
        self._of_sweep = self._place_in_sweep(tracker)
        self._tracker = tracker
        return tracker

    def _place_in_sweep(self, tracker: Tracker) -> dict[str, str]:
        """Tags that put the run beneath its sweep; none for a run of its own."""
        point = point_of(self._run)
        if point is None:
            return {}
        since = time.monotonic()
        parent = find_parent(
            self._run,
            point,
            tracker,
            store=self._store.uri,
            experiment_id=self._cursor.experiment_id,
            user=self._user,
            left_s=lambda: self._patience.left_s(since, unanswered_s=LOCKED_S),
        )
        return point_tags(point, parent)

    def _upload(self, tracker: Tracker, *, final: bool) -> None:
        """Uploads the journals to their end, a killed process's unfinished portion first."""
        if self._cursor.sending:
            self._send(tracker, self._feed.read_to(self._cursor.offsets, self._cursor.sending))
        while (portion := self._feed.read(self._cursor.offsets, final=final)).offsets != self._cursor.offsets:
            self._save(replace(self._cursor, sending=portion.offsets))
            self._send(tracker, portion)

    def _send(self, tracker: Tracker, portion: Portion) -> None:
        self._warnings += tracker.log_points(self._cursor.mlflow_run_id, portion.points)
        curves, facts = self._feed.curves, self._feed.facts
        self._save(
            replace(
                self._cursor,
                offsets=portion.offsets,
                sending={},
                points=curves.points,
                repeats=curves.repeats,
                repeats_differ=curves.repeats_differ,
                damaged_lines=facts.damaged_lines,
            )
        )

    def _show(self, tracker: Tracker, attempt: AttemptDir, ending: Ending) -> None:
        """Brings everything but the curves up to date, the status last."""
        mlflow_run_id = self._cursor.mlflow_run_id
        missing: list[str] = []
        if not self._shown or self._cursor.end != ending.mark:
            missing = self._log_params_and_artifacts(tracker)
        said = read_annotations(self._run)
        tags = self._view.tags(attempt, ending, self._feed.facts, self._feed.curves, said) | self._of_sweep
        self._warnings += tracker.log_tags(mlflow_run_id, dict(tags.items() - self._shown.items()))
        if said.mark != self._cursor.annotations:
            for key in said.removed:
                tracker.delete_tag(mlflow_run_id, key)
        self._shown = tags
        if ending.status != self._status or self._cursor.end != ending.mark:
            tracker.set_status(mlflow_run_id, ending.status, _end_ms(ending, self._feed.facts))
            self._status = ending.status
        self._warnings += missing
        self._save(replace(self._cursor, end="" if missing else ending.mark, annotations=said.mark))

    def _log_params_and_artifacts(self, tracker: Tracker) -> list[str]:
        """Returns what could not be put into the place for artifacts; the next sync tries again."""
        mlflow_run_id = self._cursor.mlflow_run_id
        params, long_values = split_long(self._view.params())
        self._warnings += tracker.log_params(mlflow_run_id, params)
        missing: list[str] = []
        done = dict(self._cursor.artifacts)
        for name, text in (_artifacts(self._run) | long_values).items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if done.get(name) != digest:
                reasons = tracker.log_text(mlflow_run_id, name, text)
                missing += reasons
                done |= {} if reasons else {name: digest}
        for path in _measured(self._run):
            folder, size = f"profile/{path.parents[1].name}", str(path.stat().st_size)
            name = f"{folder}/{path.name}"
            if done.get(name) != size:
                reasons = tracker.log_file(mlflow_run_id, path, folder)
                missing += reasons
                done |= {} if reasons else {name: size}
        self._save(replace(self._cursor, artifacts=done))
        return missing

    def _save(self, cursor: Cursor) -> None:
        if cursor != self._cursor:
            write_cursor(self._run, cursor)
            self._cursor = cursor


def sync_run(run: RunDir, *, deadline_s: float | None) -> SyncResult:
    """Uploads what a run directory holds, within `deadline_s` seconds; None: as long as the store answers.

    Raises TrackingError when the store can't be reached in time, UserError when the configuration names no usable
    store or somebody deleted the run there, RunDirError when a file of the run is damaged.
    """
    cursor = read_cursor(run, store_of(run).uri)
    if is_complete(run, cursor):
        return _result(run, cursor, complete=True, warnings=[])
    deadline = math.inf if deadline_s is None else time.monotonic() + deadline_s
    return Syncer(run, Once(deadline)).sync()


def follow_run(run: RunDir, patience: Following) -> SyncResult:
    """Uploads a run while it goes on, until its attempt is over or `patience` is told to stop; see `sync_run`."""
    syncer = Syncer(run, patience)
    while True:
        last = patience.is_told_to_stop
        result = syncer.sync()
        if result.complete or last:
            return result
        patience.pause(POLL_S)


def _result(run: RunDir, cursor: Cursor, *, complete: bool, warnings: Sequence[str]) -> SyncResult:
    return SyncResult(
        run_id=run.run_id,
        store=cursor.store,
        experiment_id=cursor.experiment_id,
        mlflow_run_id=cursor.mlflow_run_id,
        complete=complete,
        points=cursor.points,
        repeats=cursor.repeats,
        repeats_differ=cursor.repeats_differ,
        damaged_lines=cursor.damaged_lines,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _measured(run: RunDir) -> list[Path]:
    """What was profiled, by attempt; what is too large to be looked at in a browser stays in the run directory."""
    files = (path for attempt in run.attempts() for path in sorted(attempt.profile_dir.glob("*")))
    return [path for path in files if path.is_file() and path.stat().st_size <= LARGEST_PROFILE_BYTES]


def _artifacts(run: RunDir) -> dict[str, str]:
    """Text of the files that go to MLflow as they are, by name."""
    if run.plan_file.exists():
        current_record(run)  # written once the run is over
    files = (
        run.config_file,
        run.plan_file,
        run.plan_text_file,
        run.submission_file,
        run.provenance_file,
        run.record_file,
    )
    found = {path.name: path.read_text(encoding="utf-8") for path in files if path.exists()}
    attempt = run.last_attempt()
    certificates = attempt.bindings() if attempt else []
    reports = [path for path in sorted(run.reports_dir.glob("*")) if path.suffix in (".html", ".md", ".csv")]
    beside = {f"binding/{path.name}": path for path in certificates} | {
        f"reports/{path.name}": path for path in reports
    }
    return found | {name: path.read_text(encoding="utf-8") for name, path in beside.items()}


def _start_ms(run: RunDir, attempt: AttemptDir, end: End | None) -> int:
    """When the run began: its first event, else its submission, else the end of a run that never began."""
    probe = Feed(run)
    probe.read({}, final=True)
    handle = attempt.read_handle()
    times = (probe.facts.first_time, handle and handle.submitted_at, end and end.time)
    return int(next((moment for moment in times if moment), time.time()) * 1000)


def _end_ms(ending: Ending, facts: Facts) -> int | None:
    """When the run ended; the last sign of life where nobody saw the end."""
    if ending.end is None or ending.end.continues:
        return None
    seen = facts.last_time if ending.end.state is RunState.unknown else None
    return int((seen or ending.end.time) * 1000)


# --------------------------------------------------------------------------- as a program


def main(arguments: Sequence[str] | None = None) -> int:
    """Syncs run directories; the exit code is 0, or that of the last error it prints."""
    parser = argparse.ArgumentParser(prog="python -P -m pipeline.tracking.sync", description="Upload a run to MLflow.")
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--follow", action="store_true", help="from within the job: until the attempt is over")
    options = parser.parse_args(arguments)
    code = 0
    for run_dir in options.run_dirs:
        run = RunDir(run_dir.resolve())
        try:
            print(_follow(run) if options.follow else _summary(_sync_once(run)), flush=True)
        except HimoriError as error:
            print(f"himori sync: {error}", file=sys.stderr, flush=True)
            code = error.exit_code
    return code


def _sync_once(run: RunDir) -> SyncResult:
    if not run.config_file.exists():
        raise RunNotFound(f"{run.path} is no run directory: it has no config.yaml; see `himori status`")
    return sync_run(run, deadline_s=None)


def _follow(run: RunDir) -> str:
    if not sync_here(run, in_job=True):
        return f"{run.run_id}: left to the submitting side, a job does not write sqlite over the network"
    patience = Following(run, run.read_experiment().tracking.finish_timeout_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: patience.tell_to_stop())
    return _summary(follow_run(run, patience))


def _summary(result: SyncResult) -> str:
    what = f"{result.points} points in {result.store}" if result.mlflow_run_id else "nothing to upload yet"
    notes = "".join(f"; {warning}" for warning in result.warnings[:5])
    return f"{result.run_id}: {what}{'' if result.complete else ', not over yet'}{notes}"


if __name__ == "__main__":
    sys.exit(main())
