"""Ends points of a sweep that wait or run."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence

from launchers.launcher import launcher_for
from launchers.sweep_state import PointState
from pipeline.rundir import RunDir, write_json
from pipeline.sweepdir import SweepDir
from pipeline.types import LauncherKind


def end_points(sweep: SweepDir, alive: Sequence[PointState]) -> None:
    """Asks for the end of points, in their directories and of their schedulers."""
    asked = {"by": getpass.getuser(), "time": time.time()}
    for state in alive:
        assert state.run is not None
        attempt = RunDir(sweep.run_root / state.run.run_id).last_attempt()
        if attempt:
            # Written first: the supervisors tell a cancelled run from one that a signal hit by this file.
            write_json(attempt.cancel_file, asked, durable=False)
    _end_jobs(sweep, alive)


def _end_jobs(sweep: SweepDir, alive: Sequence[PointState]) -> None:
    """Ends jobs, an array by one command where all of it is to end."""
    arrays: set[str] = set()
    for state in alive:
        assert state.run is not None
        attempt = RunDir(sweep.run_root / state.run.run_id).last_attempt()
        handle = attempt.read_handle() if attempt else None
        if handle is None:
            continue
        if handle.launcher is LauncherKind.local:
            launcher_for(handle.launcher).cancel(handle.job_id, handle)
        else:
            arrays.add(handle.job_id.partition("_")[0])
    for job_id in sorted(arrays):
        launcher_for(LauncherKind.slurm).cancel(job_id, None)
    for batch in {state.batch for state in alive if state.batch and state.batch.read_handle() is None}:
        launcher_for(LauncherKind.slurm).drop_batch(batch)
