"""The server for a team: its login, a back-up while it runs, and the runs of the restored store in a real browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from support.browser_session import open_browser
from support.cli import HIMORI
from support.finished_runs import H200, finished_run

from pipeline.rundir import RunDir, write_yaml

PASSWORD = "canary-of-the-admin-1"
LOGIN = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
STEPS = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def ask(url: str, *, password: str | None = PASSWORD) -> str:
    request = urllib.request.Request(url)
    if password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"admin:{password}".encode()).decode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def refusal(url: str, password: str | None) -> int:
    try:
        ask(url, password=password)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


@contextlib.contextmanager
def serving(*command: str, log: Path, port: int, environment: Mapping[str, str]) -> Iterator[str]:
    arguments = [*HIMORI, *command, "--port", str(port)]
    with (
        log.open("w") as stream,
        subprocess.Popen(
            arguments, env=os.environ | environment, stdout=stream, stderr=stream, start_new_session=True
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 150
            while True:
                with contextlib.suppress(OSError):
                    ask(f"{url}/health", password=None)
                    break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.2)
            said = b"\0".join(file.read_bytes() for file in Path("/proc").glob(f"{process.pid}/cmdline"))
            assert PASSWORD.encode() not in said
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def himori(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [*HIMORI, *arguments], env=os.environ | variables, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def send_to(run: RunDir, uri: str) -> None:
    experiment = run.read_experiment()
    write_yaml(run.config_file, replace(experiment, tracking=replace(experiment.tracking, uri=uri)))


def synced(run: RunDir) -> dict[str, str]:
    found: dict[str, str] = json.loads(run.sync_file.read_text())["data"]
    return found


def losses(url: str, mlflow_run_id: str) -> list[tuple[int, float]]:
    query = f"run_id={mlflow_run_id}&metric_key=train/loss&max_results=1000"
    found = json.loads(ask(f"{url}/api/2.0/mlflow/metrics/get-history?{query}"))["metrics"]
    return sorted((int(point["step"]), point["value"]) for point in found)


def make_runs(root: Path, uri: str) -> list[RunDir]:
    runs = [finished_run(root, [*H200, f"recipe.micro_batch={micro}"], 1.2, steps=STEPS) for micro in (1, 2)]
    for run in runs:
        send_to(run, uri)
    return runs


def test_a_team_server_is_backed_up_while_it_runs_and_looked_at_restored(tmp_path: Path) -> None:
    port, folder, copy, again = free_port(), tmp_path / "team", tmp_path / "copy", tmp_path / "again"
    first, second = make_runs(tmp_path / "runs", f"http://127.0.0.1:{port}")
    himori("note", str(first.path), "said of **the first**")
    himori("tag", str(first.path), "why=browser", "gone=soon")
    start = ["server", "start", "--folder", str(folder)]
    with serving(*start, log=tmp_path / "log", port=port, environment={"MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD}) as url:
        listing = f"{url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        assert [refusal(listing, password) for password in (None, "wrong", PASSWORD)] == [401, 401, 200]
        himori("sync", str(first.path), **LOGIN)
        himori("tag", str(first.path), "gone=")
        writing = subprocess.Popen([*HIMORI, "sync", *(str(run.path) for run in (first, second))],
                                   env=os.environ | LOGIN, stdout=subprocess.DEVNULL)  # fmt: skip
        himori("server", "backup", str(copy.with_name("early")), "--folder", str(folder))
        assert writing.wait(timeout=200) == 0
        himori("server", "backup", str(copy), "--folder", str(folder))
        before = [losses(url, synced(run)["mlflow_run_id"]) for run in (first, second)]
        told = himori("ui", str(first.path), "--run-root", str(first.path.parent))
        assert f"MLflow UI: {url}/" in told
    assert [len(points) for points in before] == [STEPS, STEPS]
    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert PASSWORD.encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0
    himori("server", "restore", str(copy), "--folder", str(again))
    ids = [synced(run) for run in (first, second)]
    send_to(first, f"sqlite:///{again}/mlflow.db")
    look = ["ui", str(first.path), "--run-root", str(first.path.parent)]
    with serving(*look, log=tmp_path / "log-ui", port=free_port(), environment={}) as url:
        assert [losses(url, one["mlflow_run_id"]) for one in ids] == before
        look_around(url, ids, (first, second), tmp_path)


def look_around(url: str, ids: list[dict[str, str]], runs: tuple[RunDir, RunDir], folder: Path) -> None:
    shots = Path(os.environ.get("HIMORI_SCREENSHOTS", folder))
    experiment, (one, two) = ids[0]["experiment_id"], [each["mlflow_run_id"] for each in ids]
    base, training = f"{url}/#", "workflowType=machine_learning"
    listed = f"/experiments/{experiment}"
    compare = f"/compare-runs?runs={json.dumps([one, two])}&experiments={json.dumps([experiment])}"
    compare = compare.replace('"', "%22").replace(" ", "")
    pages = {
        "runs": (f"{listed}/runs", [run.run_id for run in runs]),
        "run": (f"{listed}/runs/{one}", ["said of the first", "browser"]),
        "charts": (f"{listed}/runs/{one}/model-metrics", ["train", "loss"]),
        "comparison": (compare, [run.run_id for run in runs]),
        "artifacts": (f"{listed}/runs/{one}/artifacts", ["config.yaml", "plan.json", "provenance.json"]),
    }
    with open_browser(folder / "profile") as browser:
        for name, (path, texts) in pages.items():
            browser.open(f"{base}{path}{'&' if '?' in path else '?'}{training}", *texts)
            browser.shoot(shots / f"{name}.png")
    assert browser.errors == []


def test_what_would_be_unsafe_is_refused_in_a_line(tmp_path: Path) -> None:
    cases = [
        ([], {}, "MLFLOW_AUTH_ADMIN_PASSWORD: not set"),
        ([], {"MLFLOW_AUTH_ADMIN_PASSWORD": "short"}, "MLFLOW_AUTH_ADMIN_PASSWORD: too short"),
        (["--host", "0.0.0.0"], {"MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD}, "--allowed-hosts: needed"),
        (["--database", "postgresql://me:canary@db/m"], {}, "holds a password"),
        (["--database", "mysql://db/m"], {}, "mysql is not known here"),
    ]
    for options, variables, says in cases:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pipeline", "server", "start", *options],
            env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert says in done.stderr
        assert "canary" not in done.stderr
    assert list(tmp_path.iterdir()) == []
