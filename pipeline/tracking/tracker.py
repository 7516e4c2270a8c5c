"""A tracking store whose requests are repeated until they are answered; the one importer of mlflow."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import TrackingError, UserError
from pipeline.tracking.patience import LOCKED_S, Patience
from pipeline.tracking.points import Point
from pipeline.tracking.store import Store, file_lock
from pipeline.tracking.view import EXPERIMENT_TAGS

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

T = TypeVar("T")

BATCH = 990
"""Items of one request; MLflow takes 1000."""
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

    def find_or_create_run(
        self, experiment_id: str, run_id: str, start_ms: int, *, user: str = "", tag: str = "himori.run_id"
    ) -> str:
        """Id of the MLflow run tagged with `run_id`. A create whose answer is lost may have worked: each try looks."""
        # Without it MLflow names the user "unknown", and this can't be told it later.
        tags = {tag: run_id} | ({"mlflow.user": user} if user else {})

        def find_or_create() -> str:
            found = self._client.search_runs(
                [experiment_id], f"tags.`{tag}` = '{run_id}'", max_results=1, order_by=["start_time ASC"]
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

    def delete_tag(self, mlflow_run_id: str, key: str) -> None:
        """Removes a tag, if the run has it."""
        from mlflow.exceptions import MlflowException

        def delete() -> None:
            if key in self._client.get_run(mlflow_run_id).data.tags:
                try:
                    self._client.delete_tag(mlflow_run_id, key)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                        raise

        self._ask(delete)

    def log_text(self, mlflow_run_id: str, name: str, text: str) -> list[str]:
        """Uploads a text as an artifact; returns why it could not be, if so."""
        try:
            self._ask(lambda: self._client.log_text(mlflow_run_id, text, name))
        except (_Refused, OSError, ImportError) as error:
            # A place for artifacts that can't be written from here must not keep the curves back.
            return [f"artifact {name}: {_one_line(error)}"]
        return []

    def log_file(self, mlflow_run_id: str, path: Path, folder: str) -> list[str]:
        """Uploads a file as an artifact; returns why it could not be, if so."""
        try:
            self._ask(lambda: self._client.log_artifact(mlflow_run_id, str(path), folder))
        except (_Refused, OSError, ImportError) as error:
            return [f"artifact {folder}/{path.name}: {_one_line(error)}"]
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
