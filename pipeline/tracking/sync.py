"""Uploads a run directory to MLflow until all of it is there; the one importer of mlflow.

    python -P -m pipeline.tracking.sync RUN_DIR [--follow]

Nothing in MLflow is a source: delete `sync.json`, or the whole store, and the next sync makes the same run again.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import HimoriError, RunNotFound, TrackingError, UserError
from pipeline.rundir import AttemptDir, RunDir
from pipeline.tracking.cursor import Cursor, read_cursor, write_cursor
from pipeline.tracking.feed import Facts, Feed, Portion, journal_sizes
from pipeline.tracking.patience import LOCKED_S, Following, Once, Patience
from pipeline.tracking.points import Point
from pipeline.tracking.store import Store, file_lock, store_of, sync_here
from pipeline.tracking.view import EXPERIMENT_TAGS, Ending, is_complete, read_view, split_long
from pipeline.types import End, RunState

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

T = TypeVar("T")

BATCH = 990
"""Items of one request; MLflow takes 1000."""
POLL_S = 1.0
REQUEST_TIMEOUT_S = 15
RETRY_S = (0.2, 4.0)
"""Pause before the first repeat of a request, and the longest."""

_TIMEOUT_VARIABLE = "MLFLOW_HTTP_REQUEST_TIMEOUT"
# Each for a reason: its own retries and queues would hide what was stored, cut values would be silent, and the rest
# is noise on a job's log or talk to the outside.
_MLFLOW_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_TRUNCATE_LONG_VALUES": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_NOT_ALLOWED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}


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


# --------------------------------------------------------------------------- mlflow


class _Refused(TrackingError):
    """The store answers but doesn't take what it was given."""


class Tracker:
    """A tracking store whose requests are repeated until they are answered."""

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store = store
        self._patience = patience
        os.environ.update(_MLFLOW_ENVIRONMENT)
        if store.database is not None and not _is_database(store.database):
            _make_database(store, store.database, patience)
        self._client = self._ask(lambda: _connect(store))

    def find_experiment(self, name: str) -> str:
        """Id of an experiment, created if need be; raises UserError when somebody deleted it."""
        found = self._ask(lambda: self._client.get_experiment_by_name(name))
        if found is None:
            self._ask(lambda: self._create_experiment(name))
            found = self._ask(lambda: self._client.get_experiment_by_name(name))
        if found is None or found.lifecycle_stage == "deleted":
            raise UserError(
                f"the MLflow experiment {name!r} was deleted; restore it there, or name another: tracking.experiment"
            )
        return str(found.experiment_id)

    def find_or_create_run(self, experiment_id: str, run_id: str, start_ms: int) -> str:
        """Id of the MLflow run tagged with `run_id`. A create whose answer is lost may have worked: each try looks."""
        tags = {"himori.run_id": run_id}

        def find_or_create() -> str:
            found = self._client.search_runs(
                [experiment_id], f"tags.`himori.run_id` = '{run_id}'", max_results=1, order_by=["start_time ASC"]
            )
            run = found[0] if found else self._client.create_run(experiment_id, start_ms, tags, run_id)
            return str(run.info.run_id)

        return self._ask(find_or_create)

    def is_there(self, mlflow_run_id: str) -> bool:
        """Whether the store has that run; raises UserError when somebody deleted it there."""
        run = self._ask(lambda: self._or_none(lambda: self._client.get_run(mlflow_run_id)))
        if run is not None and run.info.lifecycle_stage == "deleted":
            raise UserError(
                f"the MLflow run {mlflow_run_id} was deleted; restore it there, or delete sync.json for a new one"
            )
        return run is not None

    def log_points(self, mlflow_run_id: str, points: Sequence[Point]) -> list[str]:
        """Uploads points; returns what the store refused and why."""
        from mlflow.entities import Metric

        metrics = [Metric(point.key, point.value, point.time_ms, point.step) for point in points]
        return self._log(mlflow_run_id, "metrics", metrics)

    def log_params(self, mlflow_run_id: str, params: Mapping[str, str]) -> list[str]:
        """Uploads parameters; returns what the store refused and why, a value that changed among it."""
        from mlflow.entities import Param

        return self._log(mlflow_run_id, "params", [Param(key, value) for key, value in params.items()])

    def log_tags(self, mlflow_run_id: str, tags: Mapping[str, str]) -> list[str]:
        """Sets tags; returns what the store refused and why."""
        from mlflow.entities import RunTag

        return self._log(mlflow_run_id, "tags", [RunTag(key, value) for key, value in tags.items()])

    def log_text(self, mlflow_run_id: str, name: str, text: str) -> list[str]:
        """Uploads a text as an artifact; returns why it could not be, if so."""
        try:
            self._ask(lambda: self._client.log_text(mlflow_run_id, text, name))
        except (_Refused, OSError, ImportError) as error:
            # A place for artifacts that can't be written from here must not keep the curves back.
            return [f"artifact {name}: {_one_line(error)}"]
        return []

    def set_status(self, mlflow_run_id: str, status: str, end_ms: int | None) -> None:
        """Sets the status of the run, and its end where it has one."""
        if end_ms is None:
            self._ask(lambda: self._client.update_run(mlflow_run_id, status=status))
        else:
            self._ask(lambda: self._client.set_terminated(mlflow_run_id, status=status, end_time=end_ms))

    def _create_experiment(self, name: str) -> None:
        """Creates it unless another process was faster."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_experiment(name, self._store.artifact_location, dict(EXPERIMENT_TAGS))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _or_none(self, request: Callable[[], T]) -> T | None:
        from mlflow.exceptions import MlflowException

        try:
            return request()
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _log(self, mlflow_run_id: str, kind: str, items: Sequence[Any]) -> list[str]:
        refused: list[str] = []
        for start in range(0, len(items), BATCH):
            refused += self._log_batch(mlflow_run_id, kind, items[start : start + BATCH])
        return refused

    def _log_batch(self, mlflow_run_id: str, kind: str, items: Sequence[Any]) -> list[str]:
        """One request; when the store refuses it, halves of it, since one bad item rejects a whole batch."""
        batch: dict[str, Any] = {kind: items}
        try:
            self._ask(lambda: self._client.log_batch(mlflow_run_id, **batch))
        except _Refused as error:
            if len(items) == 1:
                return [f"{kind} {items[0].key}: {error}"]
            self.is_there(mlflow_run_id)
            middle = len(items) // 2
            halves = items[:middle], items[middle:]
            return [reason for half in halves for reason in self._log_batch(mlflow_run_id, kind, half)]
        return []

    def _ask(self, request: Callable[[], T]) -> T:
        """The answer; raises _Refused when it is no, TrackingError when there is none in time."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        since, pause, reason = time.monotonic(), RETRY_S[0], "no time is left"
        while (left_s := self._patience.left_s(since)) > 0:
            os.environ[_TIMEOUT_VARIABLE] = str(max(1, int(min(REQUEST_TIMEOUT_S, left_s))))
            try:
                return request()
            except MlflowException as error:
                _raise_if_final(error, self._store.uri)
                reason = _one_line(error)
            except SQLAlchemyError as error:
                reason = _one_line(error)
            self._pause(since, pause)
            pause = min(2 * pause, RETRY_S[1])
        raise TrackingError(f"{self._store.uri} does not take the run: {reason}; `himori sync` goes on from here")

    def _pause(self, since: float, seconds: float) -> None:
        """Waits in slices, since a signal may have shortened the time that is left."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._patience.left_s(since) > 0:
            time.sleep(0.25)


def _connect(store: Store) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store.uri)


def _make_database(store: Store, database: Path, patience: Patience) -> None:
    """Makes the sqlite file once and whole, however many runs start at once."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    create: Callable[[str, str | None], Any] = SqlAlchemyStore
    since = time.monotonic()
    with file_lock(database.parent / ".mlflow.lock", lambda: patience.left_s(since, unanswered_s=LOCKED_S)):
        if _is_database(database):
            return
        with tempfile.TemporaryDirectory(dir=database.parent, prefix=".mlflow-") as folder:
            fresh = Path(folder) / database.name
            create(f"sqlite:///{fresh}", store.artifact_location).engine.dispose()
            fresh.replace(database)


def _is_database(database: Path) -> bool:
    """Whether the file holds something; raises TrackingError when that is no sqlite database or can't be written."""
    if not database.exists() or database.stat().st_size == 0:
        return False
    try:
        with database.open("r+b") as stream:
            magic = stream.read(16)
    except OSError as error:
        raise TrackingError(f"{database} can't be written: {error.strerror}") from error
    if magic != b"SQLite format 3\0":
        raise TrackingError(f"{database} is no sqlite database; move it away or set tracking.uri")
    return True


def _raise_if_final(error: MlflowException, uri: str) -> None:
    """Raises when asking again can't help; everything not known to be final is taken for an outage."""
    if error.error_code == "INVALID_PARAMETER_VALUE":
        raise _Refused(_one_line(error)) from error
    if error.error_code == "RESOURCE_DOES_NOT_EXIST":
        raise TrackingError(f"{uri}: {_one_line(error)}; delete sync.json to upload the run again") from error
    if error.error_code in _NOT_ALLOWED:
        raise TrackingError(f"{uri} does not let this user in: {_one_line(error)}") from error
    if "out-of-date database schema" in str(error):
        raise TrackingError(f"{uri} is of an older MLflow; back it up and run `mlflow db upgrade {uri}`") from error


def _one_line(error: BaseException) -> str:
    """Beginning and end of a message: MLflow's begin with the request and end with the cause."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:120]} ... {text[-175:]}"


# --------------------------------------------------------------------------- one run


class Syncer:
    """Uploads one run, pass by pass; several processes may do so, they take turns."""

    def __init__(self, run: RunDir, patience: Patience) -> None:
        self._run = run
        self._patience = patience
        self._view = read_view(run)
        self._store = store_of(run)
        self._feed = Feed(run)
        self._cursor = Cursor(store="")
        self._tracker: Tracker | None = None
        self._shown: dict[str, str] = {}
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
            mlflow_run_id = tracker.find_or_create_run(experiment_id, self._run.run_id, start_ms)
            self._feed.rewind({})
            self._save(Cursor(store=self._store.uri, experiment_id=experiment_id, mlflow_run_id=mlflow_run_id))
        self._shown, self._status = {}, ""
        self._tracker = tracker
        return tracker

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
        tags = self._view.tags(attempt, ending, self._feed.facts, self._feed.curves)
        self._warnings += tracker.log_tags(mlflow_run_id, dict(tags.items() - self._shown.items()))
        self._shown = tags
        if ending.status != self._status or self._cursor.end != ending.mark:
            tracker.set_status(mlflow_run_id, ending.status, _end_ms(ending, self._feed.facts))
            self._status = ending.status
        self._warnings += missing
        self._save(replace(self._cursor, end="" if missing else ending.mark))

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


def _artifacts(run: RunDir) -> dict[str, str]:
    """Text of the files that go to MLflow as they are, by name."""
    files = (run.config_file, run.plan_file, run.plan_text_file, run.submission_file, run.provenance_file)
    found = {path.name: path.read_text(encoding="utf-8") for path in files if path.exists()}
    attempt = run.last_attempt()
    certificates = attempt.bindings() if attempt else []
    return found | {f"binding/{path.name}": path.read_text(encoding="utf-8") for path in certificates}


def _start_ms(run: RunDir, attempt: AttemptDir, end: End | None) -> int:
    """When the run began: its first event, else its submission, else the end of a run that never began."""
    probe = Feed(run)
    probe.read({}, final=True)
    handle = attempt.read_handle()
    times = (probe.facts.first_time, handle and handle.submitted_at, end and end.time)
    return int(next((moment for moment in times if moment), time.time()) * 1000)


def _end_ms(ending: Ending, facts: Facts) -> int | None:
    """When the run ended; the last sign of life where nobody saw the end."""
    if ending.end is None:
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
