"""sync and ui: MLflow as a view of run directories, always in a process of its own."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pipeline.errors import UserError
from pipeline.rundir import RunDir, find_run, list_runs
from pipeline.tracking.store import resolve_store

SYNC_MODULE = "pipeline.tracking.sync"
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


def _check_free(host: str, port: int) -> None:
    """MLflow's server would say it somewhere in the middle of much else."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise UserError(
            f"--port: {host}:{port} can't be listened on ({error.strerror}); give another --port"
        ) from error


def ui(arguments: argparse.Namespace) -> int:
    """Becomes MLflow's own server on the store of a run root, on the loopback unless told otherwise."""
    root = Path(arguments.run_root).resolve()
    if not root.is_dir():
        raise UserError(f"--run-root: {root} is not a folder; give the folder that holds the run directories")
    _check_free(arguments.host, arguments.port)
    store = resolve_store(None, root)
    print(f"MLflow UI: http://{arguments.host}:{arguments.port}/?workflowType=machine_learning", flush=True)
    environment = os.environ | {
        # The UI needs no job runner; with it a server takes gigabytes and long to start.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, "-P", "-m", "mlflow", "server"]
    command += ["--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifact_location)]
    command += ["--host", arguments.host, "--port", str(arguments.port), "--workers", "1"]
    # MLflow's first import can outlast the health check of its own server.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 60"]
    os.execve(sys.executable, command, environment)
