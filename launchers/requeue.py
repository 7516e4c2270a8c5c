"""The only requeuer: runs in the batch script, on the host, after srun, and does what the attempt's end says.

`python -P -m launchers.requeue RUN_DIR`. Slurm's commands are not in every container; here they are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launchers.attempts import earlier_ends
from launchers.policy import excluded_nodes
from pipeline.errors import HimoriError
from pipeline.rundir import AttemptDir, RunDir, write_json
from pipeline.types import End

COMMAND_TIMEOUT_S = 30.0


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Requeues the job it runs in if the attempt's end asks for it; always 0, the job's own exit code is not its."""
    # Slurm ends the batch script of a job that is requeued; what is left to do takes a moment.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run = RunDir(Path((argv or sys.argv[1:])[0]))
    try:
        attempt = run.attempt(run.read_submission().attempt + int(environ.get("SLURM_RESTART_COUNT", "0")))
        end = attempt.read_end()
        if end is not None and end.continues:
            _requeue(run, attempt, end, environ["SLURM_JOB_ID"])
    except (HimoriError, OSError, KeyError) as error:
        print(f"himori: not requeued: {error}", file=sys.stderr, flush=True)
    return 0


def _requeue(run: RunDir, attempt: AttemptDir, end: End, job_id: str) -> None:
    failure = _scontrol("requeue", job_id)
    if failure:
        print(f"himori: scontrol requeue {job_id}: {failure}", file=sys.stderr, flush=True)
        message = f"{end.message}; the scheduler would not start it again: {failure}"
        write_json(attempt.end_file, replace(end, continues=False, message=message))
        return
    print(f"himori: {end.message}; job {job_id} is queued again for attempt {attempt.number + 1}", flush=True)
    nodes = excluded_nodes([*earlier_ends(run, attempt), end])
    if nodes:  # only a job that waits can be given other nodes
        failure = _scontrol("update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}")
        if failure:
            print(f"himori: {', '.join(nodes)} could not be excluded: {failure}", file=sys.stderr, flush=True)


def _scontrol(*arguments: str) -> str:
    """What scontrol complained of; empty where it did as it was told."""
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
