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
from launchers.task import LOCAL_RESTARTS
from pipeline.rundir import AttemptDir, RunDir, write_json
from pipeline.submission import logs_folder, python_command
from pipeline.tracking.provenance import boot_id
from pipeline.types import Handle, LauncherKind, Submission

POLL_S = 0.5
LEFT_BEHIND_S = 15.0
"""How long a task may outlive the end of its run and the last upload."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the newest submission of a run on this machine, attempt after attempt."""
    run = RunDir(Path((argv or sys.argv[1:])[0]))
    submission = run.read_submission()
    # The supervisors end a run that was told to stop; a handler, unlike "ignore", is not inherited by them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    # A notice is for the supervisors, which listen for it themselves; submitit's process in between would die of it.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    write_json(run.attempt(submission.attempt).handle_file, _own_handle(run, submission))
    restarts = 0
    while _run_attempt(run, submission, restarts):
        restarts += 1
    return 0


def _run_attempt(run: RunDir, submission: Submission, restarts: int) -> bool:
    """One attempt to its end; whether another one follows."""
    os.environ[LOCAL_RESTARTS] = str(restarts)
    executor = submitit.LocalExecutor(
        folder=logs_folder(submission), max_num_timeout=0, python=python_command(submission)
    )
    executor.update_parameters(
        tasks_per_node=submission.ranks_per_node,
        # The supervisors look at the clock; this is for tasks that never come up.
        timeout_min=submission.time_limit_min + 1,
        signal_delay_s=0,
        gpus_per_node=run.read_plan().gpus_per_node,
        stderr_to_stdout=True,
    )
    attempt = run.attempt(submission.attempt + restarts)
    _wait(executor.submit(start_supervisor, submission.run_dir), run, attempt)
    end = attempt.read_end()
    return end is not None and end.continues


def _wait(job: submitit.Job[None], run: RunDir, attempt: AttemptDir) -> None:
    """Until all tasks are gone; what outlives the end of the run, as a task that never came up does, is killed."""
    patience_s = run.read_experiment().tracking.finish_timeout_s + LEFT_BEHIND_S
    while not job.done():
        time.sleep(POLL_S)
        end = attempt.read_end()
        if (end and time.time() > end.time + patience_s) or not run.path.exists():
            print("a task outlived the run, or its directory, and is killed with all of its session", flush=True)
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
