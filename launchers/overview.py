"""The states of very many runs: from the index where they are over, from one question to each scheduler where not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.status import RunStatus, Views, job_views, run_statuses
from launchers.view import JobPhase, JobView
from pipeline.run_index import Ended, RunIndex, attempts_mtime_ns
from pipeline.rundir import RunDir
from pipeline.types import Handle, LauncherKind, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """One run in a line."""

    run_id: str
    state: RunState
    message: str
    job_id: str
    ended_at: float | None = None
    reaped: bool = False
    """Its end was found out just now; its MLflow run doesn't know yet."""


_WAITING = {JobPhase.held: RunState.held, JobPhase.pending: RunState.queued, JobPhase.running: RunState.running}


def overviews(
    run_root: Path, run_ids: Sequence[str], index: RunIndex, jobs: Mapping[str, Handle] | None = None
) -> dict[str, Overview]:
    """The states of runs by id; what is found to be over goes into `index`, which is saved.

    `jobs` are handles already known: a run whose job still waits or runs is then not opened.
    """
    found: dict[str, Overview] = {}
    for run_id in run_ids:
        ended = index.get(run_id)
        if ended:
            found[run_id] = _of_index(run_id, ended)
    asked = {run_id: handle for run_id, handle in (jobs or {}).items() if run_id not in found}
    views = job_views(list(asked.values()))
    for run_id, handle in asked.items():
        view = views[(handle.launcher, handle.job_id)]
        if view.phase in _WAITING and not handle.waits:
            found[run_id] = _of_view(run_id, handle, view)
    found |= _opened(run_root, [run_id for run_id in run_ids if run_id not in found], views, index)
    index.save()
    return found


def _opened(run_root: Path, run_ids: Sequence[str], views: Views, index: RunIndex) -> dict[str, Overview]:
    """Runs whose directories have to be read."""
    before = {run_id: attempts_mtime_ns(run_root, run_id) for run_id in run_ids}
    there = [RunDir(run_root / run_id) for run_id in run_ids if (run_root / run_id).is_dir()]
    found = {}
    for status in run_statuses(there, views):
        one = _of_status(status)
        found[one.run_id] = one
        if status.end and status.state.is_final:
            ended = Ended(one.state, one.message, one.job_id, status.end.time, before[one.run_id])
            index.put(one.run_id, ended)
    gone = [run_id for run_id in run_ids if run_id not in found]
    return found | {run_id: _gone(run_id) for run_id in gone}


def _of_index(run_id: str, ended: Ended) -> Overview:
    return Overview(
        run_id=run_id, state=ended.state, message=ended.message, job_id=ended.job_id, ended_at=ended.ended_at
    )


def _of_view(run_id: str, handle: Handle, view: JobView) -> Overview:
    state = _WAITING[view.phase]
    message = f"waits in the queue: {view.detail}" if view.detail and state is not RunState.running else ""
    return Overview(run_id=run_id, state=state, message=message, job_id=handle.job_id)


def _of_status(status: RunStatus) -> Overview:
    return Overview(
        run_id=status.run.run_id,
        state=status.state,
        message=status.message,
        job_id=status.handle.job_id if status.handle else "",
        ended_at=status.end.time if status.end else None,
        reaped=status.reaped,
    )


def _gone(run_id: str) -> Overview:
    return Overview(run_id=run_id, state=RunState.prepared, message="has no directory", job_id="")


def handle_of_element(array: Handle, index: int) -> Handle:
    """The handle of one element of a job array."""
    return Handle(
        run_id="",
        attempt=array.attempt,
        launcher=LauncherKind.slurm,
        job_id=f"{array.job_id}_{index}",
        submitted_at=array.submitted_at or time.time(),
    )
