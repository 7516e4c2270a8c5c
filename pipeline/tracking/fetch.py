"""Copies what MLflow keeps of himori's runs into run directories: for runs whose own directories are gone.

    python -P -m pipeline.tracking.fetch URI FOLDER

Reads only. Beside `sync` the one module that imports mlflow, and like it always a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import HimoriError, TrackingError
from pipeline.tracking.store import resolve_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FILES = ("config.yaml", "plan.json", "record.json")
_PAGE = 200
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}


def main(arguments: Sequence[str]) -> int:
    """Fetches all runs of a store; prints on stderr which couldn't be had."""
    uri, folder = arguments
    try:
        fetch(uri, Path(folder))
    except HimoriError as error:
        print(f"himori: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def fetch(uri: str, folder: Path) -> None:
    """One directory a run under `folder`; raises TrackingError when the store is silent or knows no run of ours."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    os.environ.update(_ENVIRONMENT)
    store = resolve_store(uri, folder)
    if store.database is not None and not store.database.is_file():
        raise TrackingError(f"{uri}: there is no such database; give the URI that `himori sync` wrote to")
    client = MlflowClient(tracking_uri=store.uri)
    try:
        found = sum(_fetch_run(client, run, folder) for run in _runs(client))
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{uri}: {' '.join(str(error).split())[:300]}") from error
    if not found:
        raise TrackingError(
            f"{uri}: no run that himori synced with its record; `himori sync` uploads it once a run is over"
        )


def _runs(client: MlflowClient) -> Iterator[Run]:
    """All runs with an id of ours, in all experiments."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    token: str | None = None
    while experiments:
        page = client.search_runs(experiments, "tags.`himori.run_id` != ''", max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _fetch_run(client: MlflowClient, run: Run, folder: Path) -> bool:
    """Whether all files of a run were there."""
    run_id = run.data.tags["himori.run_id"]
    there = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    missing = [name for name in FILES if name not in there]
    if missing:
        print(f"himori: {run_id}: MLflow has no {', '.join(missing)} of it", file=sys.stderr)
        return False
    target = folder / Path(run_id).name
    target.mkdir(parents=True)
    for name in FILES:
        client.download_artifacts(run.info.run_id, name, str(target))
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
