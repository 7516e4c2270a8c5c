"""The one MLflow run of a sweep under which its points stand; whichever point comes first makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.rundir import RunDir, read_optional, write_json
from pipeline.sweepdir import PointOf, SweepDir
from pipeline.tracking.store import file_lock


class Tracking(Protocol):
    """What of a tracking store is needed here."""

    def find_or_create_run(self, experiment_id: str, run_id: str, start_ms: int, *, user: str, tag: str) -> str:
        """Id of the run with that tag and name."""

    def is_there(self, mlflow_run_id: str) -> bool:
        """Whether the store has that run."""

    def log_tags(self, mlflow_run_id: str, tags: Mapping[str, str]) -> list[str]:
        """Sets tags."""

    def set_status(self, mlflow_run_id: str, status: str, end_ms: int | None) -> None:
        """Sets the status of a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The parent run as `sweeps/<sweep-id>/mlflow.json` remembers it."""

    store: str
    mlflow_run_id: str


def point_of(run: RunDir) -> PointOf | None:
    """Which point of which sweep a run is; None for a run of its own."""
    return read_optional(run.point_file, PointOf)


def find_parent(
    run: RunDir,
    point: PointOf,
    tracker: Tracking,
    *,
    store: str,
    experiment_id: str,
    user: str,
    left_s: Callable[[], float],
) -> str:
    """Id of the sweep's parent run, made if need be; raises TrackingError when patience is at its end first."""
    sweep = SweepDir(run.path.parent / "sweeps" / point.sweep_id)
    with file_lock(sweep.path / ".mlflow.lock", left_s):
        known = read_optional(sweep.mlflow_file, Parent)
        if known and known.store == store and tracker.is_there(known.mlflow_run_id):
            return known.mlflow_run_id
        now_ms = int(time.time() * 1000)
        made = tracker.find_or_create_run(experiment_id, point.sweep_id, now_ms, user=user, tag="himori.sweep_id")
        tracker.log_tags(made, {"himori.kind": "sweep", "mlflow.source.name": "himori"})
        # It stands for a question, not for a process that could still end: how far it is, its points say.
        tracker.set_status(made, "FINISHED", now_ms)
        write_json(sweep.mlflow_file, Parent(store=store, mlflow_run_id=made))
        return made


def point_tags(point: PointOf, parent: str) -> dict[str, str]:
    """Tags by which MLflow shows a run beneath its sweep."""
    return {"mlflow.parentRunId": parent, "himori.sweep": point.sweep_id, "himori.point": str(point.number)}
