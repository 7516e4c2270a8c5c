"""sync and ui: MLflow as a view of run directories, always in a process of its own."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from pipeline.commands.program import own_name
from pipeline.errors import UserError
from pipeline.rundir import RunDir, find_run, list_runs
from pipeline.tracking.store import Store, resolve_store, store_of

SYNC_MODULE = "pipeline.tracking.sync"
MACHINE_LEARNING = "#/experiments?workflowType=machine_learning"
"""MLflow 3 opens in a view of prompts and traces else."""
LOOKED_AT = 20
PORTION = 500
"""Runs one syncing process is given, within what a command line holds."""


def sync(arguments: argparse.Namespace) -> int:
    """Brings MLflow up to date with run directories."""
    root = Path(arguments.run_root)
    runs = [find_run(root, wanted) for wanted in arguments.runs] if arguments.runs else list(list_runs(root))
    if not runs:
        raise UserError(f"no runs in {root}; name another folder with --run-root")
    portions = [runs[start : start + PORTION] for start in range(0, len(runs), PORTION)]
    return max(_sync_process(portion) for portion in portions)


def sync_quietly(*runs: RunDir) -> None:
    """Tells MLflow the ends of runs that could not do so themselves; `himori sync` remains where this fails."""
    if not runs:
        return
    # On stderr: the output of the verb that noticed belongs to the verb.
    print(f"telling MLflow how {', '.join(run.run_id for run in runs)} ended…", file=sys.stderr, flush=True)
    _sync_process(runs, output=sys.stderr)


def _sync_process(runs: Sequence[RunDir], *, output: TextIO | None = None) -> int:
    command = [sys.executable, "-P", "-m", SYNC_MODULE, *(str(run.path) for run in runs)]
    return subprocess.run(command, stdout=output, check=False).returncode


def check_free(host: str, port: int) -> None:
    """MLflow's server would say it somewhere in the middle of much else."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise UserError(
            f"--port: {host}:{port} can't be listened on ({error.strerror}); give another --port"
        ) from error


def ui(arguments: argparse.Namespace) -> int:
    """Becomes MLflow's own server on the store of a run, or names the one that runs already."""
    root = Path(arguments.run_root).resolve()
    if not root.is_dir():
        raise UserError(f"--run-root: {root} is not a folder; give the folder that holds the run directories")
    whole = [run for run in list(list_runs(root))[-LOOKED_AT:] if run.config_file.exists()]
    run = find_run(root, arguments.run) if arguments.run else next(reversed(whole), None)
    store = resolve_store(None, root) if run is None else store_of(run)
    if run is not None:
        print(f"{run.run_id} goes to {store.uri}", flush=True)
        _tell_others(store, whole)
    if store.uri.startswith(("http://", "https://")):
        print(f"MLflow UI: {store.uri.rstrip('/')}/{MACHINE_LEARNING} (a server that runs already)")
    else:
        _serve(store, root, arguments)
    return 0


def _serve(store: Store, root: Path, arguments: argparse.Namespace) -> NoReturn:
    check_free(arguments.host, arguments.port)
    print(f"MLflow UI: http://{arguments.host}:{arguments.port}/{MACHINE_LEARNING}", flush=True)
    become_server(store, root / "mlartifacts", arguments.host, arguments.port)


def _tell_others(store: Store, newest: Sequence[RunDir]) -> None:
    """Names the stores of the newest runs that this one doesn't show."""
    others = {store_of(run).uri: run.run_id for run in newest}
    for uri, run_id in others.items():
        if uri != store.uri:
            print(f"others of the newest {len(newest)} runs go to {uri}: `{own_name()} ui {run_id}`", flush=True)


def become_server(
    store: Store, artifacts: Path, host: str, port: int, *, options: Sequence[str] = (), **variables: str
) -> NoReturn:
    """Replaces this process by MLflow's server on a store; `variables` join its environment."""
    environment = os.environ | {
        # The UI needs no job runner; with it a server takes gigabytes and long to start.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **variables,
    }
    command = [sys.executable, "-P", "-m", "mlflow", "server"]
    command += ["--backend-store-uri", store.uri, "--artifacts-destination", store.artifact_location or str(artifacts)]
    command += ["--host", host, "--port", str(port), "--workers", "1", *options]
    # MLflow's first import can outlast the health check of its own server.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 60"]
    os.execve(sys.executable, command, environment)
