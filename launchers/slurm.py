"""Slurm: submission through submitit, everything else through Slurm's own commands."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from launchers.dispatch import start_supervisor
from launchers.view import JobPhase, JobView
from pipeline.errors import ClusterError
from pipeline.rundir import RunDir, write_json
from pipeline.submission import job_script, logs_folder, python_command, signal_lead_s
from pipeline.types import Handle, LauncherKind, Submission

COMMAND_TIMEOUT_S = 30.0

_SUBMITIT_NAMES = {"comment", "job-name", "nodes", "ntasks-per-node", "time"}
"""sbatch options that submitit itself has to know: it counts tasks and limits time by them."""


class SlurmLauncher:
    """Jobs on a Slurm cluster."""

    def submit(self, run: RunDir, submission: Submission) -> Handle:
        """Submits held, writes the handle, then releases.

        Raises ClusterError with Slurm's own words when it refuses.
        """
        job_id = _sbatch(submission)
        attempt = run.attempt(submission.attempt)
        script = Path(logs_folder(submission)) / f"{job_id}_submission.sh"
        if script.read_text(encoding="utf-8") != job_script(submission):
            _run(["scancel", job_id])
            raise ClusterError(f"{script} differs from {attempt.job_script}; the job was cancelled: please report this")
        handle = Handle(
            run_id=run.run_id,
            attempt=submission.attempt,
            launcher=LauncherKind.slurm,
            job_id=job_id,
            submitted_at=time.time(),
        )
        write_json(attempt.handle_file, handle)
        _run(["scontrol", "release", job_id])
        return handle

    def view(self, handles: Sequence[Handle]) -> dict[str, JobView]:
        """One squeue for all, then one sacct for those the queue no longer knows."""
        ids = [handle.job_id for handle in handles]
        views = _from_squeue(ids)
        if views is None:  # no answer is not an answer about any job
            return {job_id: JobView(phase=JobPhase.unknown) for job_id in ids}
        return views | _from_sacct([job_id for job_id in ids if job_id not in views])

    def find(self, submission: Submission) -> str | None:
        """The job whose comment names the run."""
        rows = _rows(["squeue", "--noheader", "--name", submission.job_name, "--format", "%A|%k"])
        return next((row[0] for row in rows if row[-1] == submission.comment), None)

    def cancel(self, job_id: str, handle: Handle | None) -> None:  # noqa: ARG002 - a job id says it all here
        """scancel; Slurm sends SIGTERM, waits KillWait, then SIGKILL."""
        _run(["scancel", job_id])


# --------------------------------------------------------------------------- submission


def _sbatch(submission: Submission) -> str:
    try:
        executor = submitit.SlurmExecutor(
            folder=logs_folder(submission), max_num_timeout=0, python=python_command(submission)
        )
        executor.update_parameters(**submitit_parameters(submission))
        # What sbatch prints is in the error that is raised; submitit would print it a second time.
        with _own_environment(), contextlib.redirect_stderr(io.StringIO()):
            return str(executor.submit(start_supervisor, submission.run_dir).job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        raise ClusterError(f"sbatch refused the job: {_last_line(str(error))}") from error
    except RuntimeError as error:  # submitit's word for a machine without srun
        raise ClusterError(f"{error}; load Slurm's commands or use cluster=local") from error


def submitit_parameters(submission: Submission) -> dict[str, Any]:
    """The submission as submitit's Slurm executor takes it."""
    options = dict(submission.sbatch)
    known = {key.replace("-", "_"): options.pop(key) for key in sorted(_SUBMITIT_NAMES)}
    known_numbers = {key: int(known[key]) for key in ("nodes", "ntasks_per_node", "time")}
    for automatic in ("open-mode", "output", "signal"):  # submitit writes these three itself, alike
        options.pop(automatic)
    return {
        **known,
        **known_numbers,
        "additional_parameters": {key: value or True for key, value in options.items()},
        "setup": list(submission.setup),
        "signal_delay_s": signal_lead_s(submission),
        "srun_args": list(submission.srun),
        "stderr_to_stdout": True,
        "teardown": list(submission.teardown),
        "wckey": None,
    }


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """Hides the variables of a job we may be inside of: sbatch and submitit would take them for the new job's."""
    leaked = [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_"))]
    kept = {name: os.environ.pop(name) for name in leaked if name != "SLURM_CONF"}
    try:
        yield
    finally:
        os.environ.update(kept)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "error:" in line]
    return (said or lines or ["no reason given"])[-1]


# --------------------------------------------------------------------------- asking


def _from_squeue(ids: Sequence[str]) -> dict[str, JobView] | None:
    """The jobs the controller knows; None when it does not answer."""
    if not ids:
        return {}
    command = ["squeue", "--noheader", "--states=all", "--jobs", ",".join(ids), "--format", "%A|%T|%r"]
    try:
        rows = _split(_run(command))
    except ClusterError as error:
        # Asked for one job only, squeue fails when it has forgotten that one.
        return {} if "Invalid job id" in str(error) else None
    return {row[0]: _view_of(row[1], row[2]) for row in rows if len(row) == 3}


def _from_sacct(ids: Sequence[str]) -> dict[str, JobView]:
    """How jobs ended that the controller has forgotten: they are over, whether accounting knows their end or not."""
    if not ids:
        return {}
    fields = ["--noheader", "--parsable2", "--allocations", "--format", "JobID,State"]
    rows = _rows(["sacct", *fields, "--jobs", ",".join(ids)])
    views = {row[0]: _view_of(row[1].split(" ")[0], "") for row in rows if len(row) == 2}
    return {job_id: views.get(job_id, JobView(phase=JobPhase.over)) for job_id in ids}


def _view_of(word: str, reason: str) -> JobView:
    match word:
        case "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "CONFIGURING":
            held = reason.startswith("JobHeld")
            detail = "" if reason == "None" else reason
            return JobView(phase=JobPhase.held if held else JobPhase.pending, word=word, detail=detail)
        case "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT":
            return JobView(phase=JobPhase.running, word=word)
        case _:
            return JobView(phase=JobPhase.over, word=word)


def _rows(command: Sequence[str]) -> list[list[str]]:
    """Rows of a query that may fail; it has none then."""
    try:
        return _split(_run(command))
    except ClusterError:
        return []


def _split(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.splitlines() if line]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not on PATH; load Slurm's commands or use cluster=local") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} did not answer within {COMMAND_TIMEOUT_S:g} s; try again") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(command[:2])} failed: {_last_line(done.stderr or done.stdout)}")
    return done.stdout
