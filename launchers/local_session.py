"""The first process of a local run: writes the handle, lets submitit start the tasks, waits for their end.

`python -P -m launchers.local_session RUN_DIR`, started by the job script in a session of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import submitit

from launchers.dispatch import start_supervisor
from launchers.local import read_process
from pipeline.rundir import RunDir, write_json
from pipeline.submission import logs_folder, python_command
from pipeline.tracking.provenance import boot_id
from pipeline.types import Handle, LauncherKind, Submission

POLL_S = 0.5
LEFT_BEHIND_S = 15.0
"""How long a task may outlive the end of its run and the last upload."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the last attempt of a run on this machine."""
    run = RunDir(Path((argv or sys.argv[1:])[0]))
    submission = run.read_submission()
    # The supervisors end a run that was told to stop; a handler, unlike "ignore", is not inherited by them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    write_json(run.attempt(submission.attempt).handle_file, _own_handle(run, submission))
    executor = submitit.LocalExecutor(
        folder=logs_folder(submission), max_num_timeout=0, python=python_command(submission)
    )
    executor.update_parameters(
        tasks_per_node=submission.ranks_per_node,
        timeout_min=submission.time_limit_min,
        gpus_per_node=run.read_plan().gpus_per_node,
        stderr_to_stdout=True,
    )
    _wait(executor.submit(start_supervisor, submission.run_dir), run)
    return 0


def _wait(job: submitit.Job[None], run: RunDir) -> None:
    """Until all tasks are gone; what outlives the end of the run, as a task that never came up does, is killed."""
    attempt = run.attempt(run.read_submission().attempt)
    patience_s = run.read_experiment().tracking.finish_timeout_s + LEFT_BEHIND_S
    while not job.done():
        time.sleep(POLL_S)
        end = attempt.read_end()
        if end and time.time() > end.time + patience_s:
            print("a task outlived the run and is killed with all of its session", flush=True)
            os.killpg(0, signal.SIGKILL)


def _own_handle(run: RunDir, submission: Submission) -> Handle:
    own = read_process(os.getpid())
    assert own is not None
    return Handle(
        run_id=run.run_id,
        attempt=submission.attempt,
        launcher=LauncherKind.local,
        job_id=str(own.session),
        submitted_at=time.time(),
        boot_id=boot_id(),
        start_ticks=own.start_ticks,
    )


if __name__ == "__main__":
    sys.exit(main())
