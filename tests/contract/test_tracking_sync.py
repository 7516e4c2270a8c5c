"""A run directory in MLflow: the same outcome in a real sqlite file and behind a real server, whatever goes wrong."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import TrackingError, UserError
from pipeline.rundir import RunDir, create_run_dir, write_json, write_text, write_yaml
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.tracking.patience import Following
from pipeline.tracking.points import metric_key
from pipeline.tracking.provenance import GitState, Provenance, boot_id, write_provenance
from pipeline.tracking.sync import SyncResult, follow_run, main, sync_run
from pipeline.types import (
    Cluster,
    DataSpec,
    DType,
    End,
    Experiment,
    Handle,
    HardwareProfile,
    LauncherKind,
    ModelSpec,
    OptimizerSpec,
    Precision,
    Recipe,
    RunState,
    Tracking,
)

# MLflow's own imports and models, not ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]

ROOT = Path(__file__).parents[2]
START = 1_700_000_000.0


# --------------------------------------------------------------------------- what is synced


def make_run(root: Path, uri: str | None = None, *, name: str = "demo", data: str | None = None) -> RunDir:
    """A run of one attempt that was submitted and has not begun."""
    run = create_run_dir(root, name)
    experiment = Experiment(
        name=name,
        hardware=HardwareProfile(name="node-cpu"),
        cluster=Cluster(name="desk", launcher=LauncherKind.local),
        model=ModelSpec(
            name="tiny",
            num_layers=2,
            hidden_size=64,
            ffn_hidden_size=128,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=256,
            max_sequence_length=64,
        ),
        precision=Precision(name="single", dtype=DType.fp32),
        optimizer=OptimizerSpec(name="adamw", lr=1e-3, min_lr=1e-4, warmup_steps=2),
        recipe=Recipe(name="smoke", steps=20, sequence_length=64, micro_batch=2, global_batch=4),
        data=DataSpec(name="stdlib", path=data),
        tracking=Tracking(name="t", uri=uri, finish_timeout_s=2.0),
    )
    write_yaml(run.config_file, experiment)
    write_text(run.plan_text_file, "the plan\n")
    write_provenance(
        run,
        Provenance(
            time=START,
            code=GitState(commit="c0ffee", branch="main", dirty=False, remote=None),
            workdir=None,
            versions={"python": "3.11.9", "torch": "2.8"},
            boot_id=boot_id(),
            platform="Linux",
            kernel="Linux 6",
        ),
    )
    submit(run, 1)
    return run


def submit(run: RunDir, attempt: int) -> None:
    handle = Handle(
        run_id=run.run_id, attempt=attempt, launcher=LauncherKind.local, job_id=f"{attempt}00", submitted_at=START - 60
    )
    write_json(run.attempt(attempt).handle_file, handle)


def journal(run: RunDir, *events: Event, attempt: int = 1) -> None:
    with JournalWriter(run.attempt(attempt).journal("n1")) as writer:
        for event in events:
            writer.append(event)


def step(number: int, *, later: float = 0.0, **values: object) -> Event:
    return Event("metrics", START + number + later, "n1", 0, {"step": number, "values": values or {"loss": number / 7}})


def finish(run: RunDir, state: RunState = RunState.finished, message: str = "", *, attempt: int = 1) -> None:
    write_json(run.attempt(attempt).end_file, End(state=state, message=message, first=None, time=START + 500))


# --------------------------------------------------------------------------- what it becomes


@dataclass(frozen=True)
class Stored:
    """The MLflow runs of one run directory, read from the database itself."""

    database: Path
    run_id: str

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return connection.execute(
                query.replace("MINE", "run_uuid IN (SELECT run_uuid FROM tags WHERE key='himori.run_id' AND value=?)"),
                (self.run_id,),
            ).fetchall()

    def points(self, key: str = "loss") -> list[tuple[object, ...]]:
        """(step, value) of a curve, every row of it."""
        query = f"SELECT step, value FROM metrics WHERE MINE AND key = '{key}' ORDER BY step, value"
        return self.rows(query)

    def keys(self) -> set[object]:
        return {key for (key,) in self.rows("SELECT DISTINCT key FROM metrics WHERE MINE")}

    def pairs(self, table: str) -> dict[object, object]:
        return dict(self.rows(f"SELECT key, value FROM {table} WHERE MINE"))  # type: ignore[arg-type]

    @property
    def tags(self) -> dict[object, object]:
        return self.pairs("tags")

    @property
    def params(self) -> dict[object, object]:
        return self.pairs("params")

    def info(self) -> tuple[object, ...]:
        """(status, start, end) in ms of the one run there is."""
        (info,) = self.rows("SELECT status, start_time, end_time FROM runs WHERE MINE")
        return info


@dataclass(frozen=True)
class Place:
    """A store that runs can be synced to."""

    run_root: Path
    uri: str | None
    database: Path
    artifacts: Path

    def make_run(self, **options: str) -> RunDir:
        return make_run(self.run_root, self.uri, **options)

    def stored(self, run: RunDir) -> Stored:
        return Stored(self.database, run.run_id)

    def artifact(self, run: RunDir, name: str) -> str:
        (path,) = self.artifacts.glob(f"**/{sync_run(run, deadline_s=30).mlflow_run_id}/artifacts/{name}")
        return path.read_text()


@contextlib.contextmanager
def sync_process(run: RunDir, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The sync as a program, as jobs start it; it does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "pipeline.tracking.sync", str(run.path), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=run.path,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, output, errors) of a process."""
    output, errors = process.communicate(timeout=200)
    return process.returncode, output, errors


def wait_for(condition: Callable[[], object], *, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunDir]]:
    """A database of MLflow's schema, made by four syncs at once on a fresh store, and the runs they synced."""
    root = tmp_path_factory.mktemp("fresh")
    runs = [make_run(root, name="fresh") for _ in range(3)]
    for run in runs:
        journal(run, step(1))
        finish(run)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(sync_process(run)) for run in [*runs, runs[0]]]
        outcomes = [outcome(process) for process in processes]
    assert [(code, errors) for code, _, errors in outcomes] == [(0, "")] * 4
    return root / "mlflow.db", runs


@pytest.fixture
def sqlite_place(tmp_path: Path, empty_database: tuple[Path, list[RunDir]]) -> Place:
    root = tmp_path / "runs with 100% blanks"
    root.mkdir()
    shutil.copy(empty_database[0], root / "mlflow.db")
    return Place(root, None, root / "mlflow.db", root / "mlartifacts")


@dataclass(frozen=True)
class Server:
    port: int
    folder: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: tuple[Path, list[RunDir]]) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database[0], folder / "server.db")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        ) as process,
    ):
        try:
            wait_for(lambda: is_healthy(port), seconds=120)
            yield Server(port, folder)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def server_place(tmp_path: Path, server: Server) -> Place:
    uri = f"http://127.0.0.1:{server.port}"
    return Place(tmp_path / "runs", uri, server.folder / "server.db", server.folder / "artifacts")


@pytest.fixture(params=["sqlite", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue(f"{request.param}_place")
    assert isinstance(found, Place)
    return found


class Relay:
    """The network before the server: a TCP port that can be closed, deaf, or lose the answer to a request."""

    def __init__(self, server: Server, *, port: int = 0) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._clients: list[socket.socket] = []
        self.is_deaf = False
        self.loses_answer_to = b""
        """Part of the request whose first answer does not come back."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            if not self.is_deaf:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        loses = False
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._server.port)) as upstream,
        ):
            while ready := select.select([client, upstream], [], [])[0]:
                source, sink = (client, upstream) if client in ready else (upstream, client)
                data = source.recv(1 << 16)
                loses = loses or (source is client and self._loses(data))
                if not data or (loses and source is upstream):
                    return
                sink.sendall(data)

    def _loses(self, request: bytes) -> bool:
        if not self.loses_answer_to or self.loses_answer_to not in request:
            return False
        self.loses_answer_to = b""
        return True

    def close(self) -> None:
        for end in [self._listener, *self._clients]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self.is_deaf:
            for client in self._clients:
                client.close()


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    relay = Relay(server)
    yield relay
    relay.close()


# --------------------------------------------------------------------------- what a run becomes


def test_four_syncs_at_once_on_a_fresh_store_make_one_schema_and_one_mlflow_run_each(
    empty_database: tuple[Path, list[RunDir]],
) -> None:
    database, runs = empty_database
    for run in runs:
        assert Stored(database, run.run_id).info()[0] == "FINISHED"
        assert Stored(database, run.run_id).points() == [(1, 1 / 7)]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM experiments WHERE name = 'fresh'").fetchone() == (1,)


def test_a_finished_run_is_all_there(place: Place) -> None:
    run = place.make_run()
    environment = Event("environment", START, "n1", 0, {"torch": "2.9+cu", "megatron_core": "0.16.1"})
    journal(run, environment, *(step(number) for number in range(1, 8)))
    finish(run, message="7 steps")
    result = sync_run(run, deadline_s=60)
    stored = place.stored(run)
    assert (result.complete, result.points, result.warnings) == (True, 7, ())
    assert stored.points() == [(number, number / 7) for number in range(1, 8)]
    assert stored.info() == ("FINISHED", START * 1000, (START + 500) * 1000)
    assert stored.params.items() >= {"model": "tiny", "optimizer.lr": "0.001", "seed": "1234"}.items()
    expected = {
        "himori.end": "FINISHED",
        "himori.end_message": "7 steps",
        "himori.job_id": "100",
        "himori.nodes": "n1",
        "himori.torch": "2.9+cu",
        "himori.python": "3.11.9",
        "himori.git.dirty": "false",
        "mlflow.source.git.commit": "c0ffee",
        "mlflow.runName": run.run_id,
    }
    assert stored.tags.items() >= expected.items()
    assert str(stored.tags["mlflow.note.content"]).startswith("**FINISHED**: 7 steps")
    for name in ("config.yaml", "plan.txt", "provenance.json"):
        assert place.artifact(run, name) == (run.path / name).read_text()


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (RunState.failed, "FAILED"),
        (RunState.timeout, "FAILED"),
        (RunState.unknown, "FAILED"),
        (RunState.cancelled, "KILLED"),
    ],
)
def test_the_end_decides_the_status(sqlite_place: Place, state: RunState, status: str) -> None:
    run = sqlite_place.make_run()
    journal(run, step(1), step(2))
    finish(run, state, "why")
    sync_run(run, deadline_s=60)
    stored = sqlite_place.stored(run)
    last_sign = START + 2 if state is RunState.unknown else START + 500
    assert stored.info() == (status, (START + 1) * 1000, last_sign * 1000)
    assert (stored.tags["himori.end"], stored.tags["himori.end_message"]) == (state.value, "why")


def test_a_run_cancelled_in_the_queue_has_a_status_and_no_points(place: Place) -> None:
    run = place.make_run()
    assert sync_run(run, deadline_s=60).mlflow_run_id == ""
    assert place.stored(run).rows("SELECT * FROM runs WHERE MINE") == []
    finish(run, RunState.cancelled, "cancelled while queued")
    assert sync_run(run, deadline_s=60).complete
    assert place.stored(run).info() == ("KILLED", (START - 60) * 1000, (START + 500) * 1000)
    assert place.stored(run).keys() == set()


def test_a_second_attempt_continues_the_same_run_and_its_repeats_are_compared_not_doubled(place: Place) -> None:
    run = place.make_run()
    journal(run, *(step(number) for number in range(1, 7)))
    sync_run(run, deadline_s=60)
    assert place.stored(run).info()[0] == "RUNNING"
    finish(run, RunState.failed, "rank 1 died")
    sync_run(run, deadline_s=60)
    assert place.stored(run).info()[0] == "FAILED"
    submit(run, 2)
    sync_run(run, deadline_s=60)
    assert place.stored(run).info()[0] == "SCHEDULED"
    journal(run, step(5, later=50), step(6, later=50, loss=9.0), step(7, later=50), attempt=2)
    assert sync_run(run, deadline_s=60).repeats == 2
    assert place.stored(run).info()[0] == "RUNNING"
    finish(run, attempt=2)
    result = sync_run(run, deadline_s=60)
    stored = place.stored(run)
    assert (result.repeats, result.repeats_differ) == (2, 1)
    assert stored.points() == [(number, number / 7) for number in range(1, 8)]
    assert stored.info()[0] == "FINISHED"
    expected = {"himori.attempt": "2", "himori.job_id": "200", "himori.repeats_differ": "1", "himori.end": "FINISHED"}
    assert stored.tags.items() >= expected.items()


def test_hostile_names_and_values_cost_nothing_but_themselves(place: Place) -> None:
    long_path = "/" + "x" * 8000
    run = place.make_run(data=long_path)
    nan, inf = float("nan"), float("inf")
    hostile: dict[str, object] = {
        "lm loss (val) = 5%": 1.0,
        "a//b": 2.0,
        "../up": 3.0,
        "two\nlines": 4.0,
        "k" * 251: 5.0,
        "": 6.0,
        "text": "seven",
        "none": None,
        "µ/ok": 8.0,
    }
    data = {"step": 1, "values": {**hostile, "loss": nan, "grad": inf, "good": 1.5}}
    journal(run, Event("metrics", START, "n1", 0, data), step(2, loss=0.5, grad=-inf))
    finish(run)
    result = sync_run(run, deadline_s=60)
    stored = place.stored(run)
    assert result.warnings == ()
    assert stored.keys() == {
        "loss",
        "good",
        "µ/ok",
        "train/nonfinite_count",
        *(metric_key(key) for key in ("lm loss (val) = 5%", "a//b", "../up", "two\nlines", "k" * 251, "")),
    }
    assert stored.points("loss") == [(2, 0.5)]
    assert stored.points("train/nonfinite_count") == [(1, 2.0), (2, 3.0)]
    assert stored.tags["train.first_nonfinite_step"] == "1"
    assert stored.tags["himori.quarantined"] == "none: NoneType is not a number; text: str is not a number"
    assert str(stored.params["data.path"]).startswith("8001 characters, sha256 ")
    assert place.artifact(run, "params/data.path.txt") == long_path


@settings(deadline=None)
@given(st.text())
def test_every_key_made_is_one_that_mlflow_takes(written: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(metric_key(written))


def test_a_run_is_made_again_from_its_directory(sqlite_place: Place, empty_database: tuple[Path, list[RunDir]]) -> None:
    run = sqlite_place.make_run()
    journal(run, *(step(number) for number in range(1, 6)))
    finish(run, RunState.failed, "first")
    submit(run, 2)
    journal(run, step(5, later=50, loss=9.0), step(6, later=50), attempt=2)
    finish(run, attempt=2)
    sync_run(run, deadline_s=60)
    stored = sqlite_place.stored(run)

    def picture() -> list[object]:
        metrics = stored.rows("SELECT key, step, value, timestamp FROM metrics WHERE MINE ORDER BY 1, 2")
        return [metrics, stored.tags, stored.params, stored.info()]

    before = picture()
    for spoil in (run.sync_file.unlink, lambda: run.sync_file.write_text("{")):
        spoil()
        sync_run(run, deadline_s=60)
        assert picture() == before
    run.sync_file.unlink()
    sqlite_place.database.unlink()
    shutil.copy(empty_database[0], sqlite_place.database)
    shutil.rmtree(sqlite_place.artifacts)
    with sync_process(run) as again:  # a process of its own: this one has the deleted file still open
        assert outcome(again)[2] == ""
    assert picture() == before
    assert sqlite_place.artifact(run, "config.yaml") == run.config_file.read_text()


def test_a_store_that_lost_the_run_gets_it_again(server_place: Place) -> None:
    run = server_place.make_run()
    journal(run, step(1))
    result = sync_run(run, deadline_s=60)
    content = run.sync_file.read_text()
    run.sync_file.write_text(content.replace(result.mlflow_run_id, "0" * 32))
    with contextlib.closing(sqlite3.connect(server_place.database, timeout=30)) as connection, connection:
        connection.execute("UPDATE tags SET value = 'x' WHERE key = 'himori.run_id' AND value = ?", (run.run_id,))
    finish(run)
    assert sync_run(run, deadline_s=60).complete
    assert server_place.stored(run).points() == [(1, 1 / 7)]


def test_a_run_deleted_in_mlflow_is_not_brought_back_behind_its_users_back(sqlite_place: Place) -> None:
    run = sqlite_place.make_run()
    journal(run, step(1))
    sync_run(run, deadline_s=60)
    with contextlib.closing(sqlite3.connect(sqlite_place.database)) as connection, connection:
        connection.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    with pytest.raises(UserError, match=r"was deleted; restore it there, or delete sync\.json"):
        sync_run(run, deadline_s=60)


# --------------------------------------------------------------------------- what goes wrong


def test_a_sync_killed_again_and_again_leaves_each_point_once(server_place: Place) -> None:
    run = server_place.make_run()
    steps = 6000
    journal(run, *(step(number) for number in range(steps)))
    stored = server_place.stored(run)
    for share in (1, 3):
        with sync_process(run, "--follow"):
            wait_for(lambda share=share: len(stored.points()) >= share * 990)  # type: ignore[misc]
        assert len(stored.points()) < steps
    journal(run, step(steps))
    finish(run)
    result = sync_run(run, deadline_s=120)
    assert result.complete
    assert stored.points() == [(number, number / 7) for number in range(steps + 1)]
    assert stored.info()[0] == "FINISHED"


def test_a_follower_uploads_while_the_run_goes_on_and_ends_with_it(server_place: Place) -> None:
    run = server_place.make_run()
    with sync_process(run, "--follow") as process:
        journal(run, step(1))
        wait_for(lambda: server_place.stored(run).points() == [(1, 1 / 7)])
        assert server_place.stored(run).info()[0] == "RUNNING"
        journal(run, step(2))
        finish(run)
        code, output, errors = outcome(process)
    assert (code, errors) == (0, "")
    assert f"{run.run_id}: 2 points in http://" in output
    assert server_place.stored(run).info()[0] == "FINISHED"


def test_a_follower_told_to_stop_makes_a_last_pass(sqlite_place: Place) -> None:
    run = sqlite_place.make_run()
    journal(run, step(1))
    with sync_process(run, "--follow") as process:
        wait_for(lambda: sqlite_place.stored(run).points())
        journal(run, step(2))
        process.send_signal(signal.SIGTERM)
        code, output, errors = outcome(process)
    assert (code, errors) == (0, "")
    assert "2 points" in output
    assert "not over yet" in output
    assert len(sqlite_place.stored(run).points()) == 2


def test_a_follower_outlasts_a_server_that_is_down(server_place: Place, server: Server, relay: Relay) -> None:
    relay.close()
    run = replace(server_place, uri=relay.uri).make_run()
    journal(run, step(1))
    results: list[SyncResult] = []
    patience = Following(run, finish_timeout_s=60)
    follower = threading.Thread(target=lambda: results.append(follow_run(run, patience)))
    follower.start()
    time.sleep(1)
    journal(run, step(2))
    finish(run)
    reopened = Relay(server, port=relay.port)
    follower.join(60)
    reopened.close()
    assert [result.complete for result in results] == [True]
    assert len(server_place.stored(run).points()) == 2


def test_a_follower_gives_up_on_a_server_that_stays_down_once_the_run_is_over(
    server_place: Place, relay: Relay
) -> None:
    relay.close()
    run = replace(server_place, uri=relay.uri).make_run()
    journal(run, step(1))
    finish(run)
    with pytest.raises(TrackingError, match=r"does not take the run: .*refused"):
        follow_run(run, Following(run, finish_timeout_s=1.0))
    assert not run.sync_file.exists()


def test_a_server_that_never_answers_is_given_up_in_time(server_place: Place, relay: Relay) -> None:
    importlib.import_module("mlflow")  # which takes its time, and is not what is measured
    relay.is_deaf = True
    run = replace(server_place, uri=relay.uri).make_run()
    journal(run, step(1))
    began = time.monotonic()
    with pytest.raises(TrackingError, match="timed out"):
        sync_run(run, deadline_s=2.0)
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("request_path", [b"/runs/create", b"/experiments/create", b"/runs/log-batch"])
def test_a_lost_answer_doubles_nothing(server_place: Place, relay: Relay, request_path: bytes) -> None:
    relay.loses_answer_to = request_path
    run = replace(server_place, uri=relay.uri).make_run(name=f"lost{request_path.decode().replace('/', '-')}")
    journal(run, step(1))
    finish(run)
    assert sync_run(run, deadline_s=60).complete
    assert relay.loses_answer_to == b""
    assert server_place.stored(run).info()[0] == "FINISHED"
    assert server_place.stored(run).points() == [(1, 1 / 7)]


def test_a_complete_run_is_not_sent_again(server_place: Place, relay: Relay) -> None:
    run = replace(server_place, uri=relay.uri).make_run()
    journal(run, step(1))
    finish(run)
    first = sync_run(run, deadline_s=60)
    relay.close()
    assert sync_run(run, deadline_s=1.0) == first
    submit(run, 2)
    journal(run, step(2), attempt=2)
    with pytest.raises(TrackingError):
        sync_run(run, deadline_s=1.0)


def test_a_place_for_artifacts_that_can_not_be_written_keeps_no_curve_back(sqlite_place: Place) -> None:
    run = sqlite_place.make_run()
    journal(run, step(1))
    finish(run)
    sqlite_place.artifacts.write_text("in the way")
    result = sync_run(run, deadline_s=60)
    assert len(result.warnings) == 3
    assert result.warnings[0].startswith("artifact config.yaml: ")
    assert sqlite_place.stored(run).points() == [(1, 1 / 7)]
    sqlite_place.artifacts.unlink()
    assert sync_run(run, deadline_s=60).warnings == ()
    assert sqlite_place.artifact(run, "config.yaml") == run.config_file.read_text()


@pytest.mark.parametrize(
    ("uri", "code", "says"),
    [
        ("mlruns", 2, "tracking.uri: 'mlruns' is a folder"),
        ("http://me:canary-secret@host", 2, "holds credentials"),
        ("sqlite:///{root}/config.yaml", 3, "is no sqlite database"),
        ("sqlite:////proc/nowhere/m.db", 3, "can't be written"),
    ],
)
def test_what_can_not_be_synced_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], uri: str, code: int, says: str
) -> None:
    (tmp_path / "config.yaml").write_text("no database, but long enough to be taken for something")
    run = make_run(tmp_path / "runs", uri.format(root=tmp_path))
    journal(run, step(1))
    assert main([str(run.path)]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert "canary-secret" not in error


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "it has no config.yaml" in capsys.readouterr().err


def test_a_job_leaves_sqlite_to_the_submitting_side(sqlite_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run = sqlite_place.make_run()
    run.provenance_file.unlink()  # where it was submitted is not known, so this machine may be another
    journal(run, step(1))
    assert main([str(run.path), "--follow"]) == 0
    assert "left to the submitting side" in capsys.readouterr().out
    assert not run.sync_file.exists()
