"""Slurm: submission through submitit, everything else through Slurm's own commands."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from launchers.dispatch import start_supervisor
from launchers.own_environment import own_environment
from launchers.slurm_commands import last_line, rows_of, run_command, split_rows
from launchers.view import JobPhase, JobView
from pipeline.errors import ClusterError
from pipeline.rundir import RunDir, make_durable, write_json
from pipeline.submission import comment_for, job_script, logs_folder, python_command, signal_lead_s
from pipeline.sweepdir import BatchDir
from pipeline.types import Handle, LauncherKind, Submission

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
            run_command(["scancel", job_id])
            raise ClusterError(f"{script} differs from {attempt.job_script}; the job was cancelled: please report this")
        handle = _handle(run.run_id, submission, job_id)
        write_json(attempt.handle_file, handle)
        run_command(["scontrol", "release", job_id])
        return handle

    def submit_batch(
        self,
        batch: BatchDir,
        runs: Sequence[RunDir],
        submission: Submission,
        *,
        parallel: int | None,  # noqa: ARG002 - it stands in the array's own option
    ) -> Handle:
        """Submits all runs as one held array, writes every handle, then releases the whole.

        Raises ClusterError with Slurm's own words when it refuses.
        """
        job_ids = _sbatch_array(submission, [str(run.path) for run in runs])
        array = job_ids[0].partition("_")[0]
        script = Path(logs_folder(submission)) / f"{array}_submission.sh"
        if script.read_text(encoding="utf-8") != job_script(submission):
            run_command(["scancel", array])
            raise ClusterError(f"{script} differs from what was planned; it was cancelled: please report this")
        for run, job_id in zip(runs, job_ids, strict=True):
            attempt = run.attempt(submission.attempt)
            write_json(attempt.handle_file, _handle(run.run_id, submission, job_id), durable=False)
        make_durable(batch.path)
        handle = _handle(batch.path.name, submission, array)
        write_json(batch.handle_file, handle)
        self.release_batch(batch, handle)
        return handle

    def release_batch(self, batch: BatchDir, handle: Handle) -> None:
        """Lets a held batch go."""
        run_command(["scontrol", "release", handle.job_id])
        write_json(batch.released_file, {"time": time.time()})

    def drop_batch(self, batch: BatchDir) -> None:
        """Removes from the queue what a killed submitter left held."""
        comment = comment_for(batch.path.name)
        rows = rows_of(["squeue", "--noheader", "--me", "--array", "--format", "%F|%k"])
        for job_id in sorted({row[0] for row in rows if row[-1] == comment}):
            run_command(["scancel", job_id])

    def view(self, handles: Sequence[Handle]) -> dict[str, JobView]:
        """One squeue for all, then one sacct for those the queue no longer knows."""
        ids = [handle.job_id for handle in handles]
        views = _from_squeue(ids)
        if views is None:  # no answer is not an answer about any job
            return {job_id: JobView(phase=JobPhase.unknown) for job_id in ids}
        return views | _from_sacct([job_id for job_id in ids if job_id not in views])

    def find(self, submission: Submission) -> str | None:
        """The job whose comment names the run."""
        rows = rows_of(["squeue", "--noheader", "--name", submission.job_name, "--format", "%F|%k"])
        job_id = next((row[0] for row in rows if row[-1] == submission.comment), None)
        return f"{job_id}_{submission.index}" if job_id and submission.batch_dir else job_id

    def cancel(self, job_id: str, handle: Handle | None) -> None:  # noqa: ARG002 - a job id says it all here
        """scancel; Slurm sends SIGTERM, waits KillWait, then SIGKILL."""
        run_command(["scancel", job_id])


# --------------------------------------------------------------------------- submission


def _handle(run_id: str, submission: Submission, job_id: str) -> Handle:
    return Handle(
        run_id=run_id,
        attempt=submission.attempt,
        launcher=LauncherKind.slurm,
        job_id=job_id,
        submitted_at=time.time(),
    )


def _sbatch(submission: Submission) -> str:
    with _executor(submission) as executor:
        return str(executor.submit(start_supervisor, submission.run_dir).job_id)


def _sbatch_array(submission: Submission, run_dirs: Sequence[str]) -> list[str]:
    with _executor(submission) as executor:
        return [str(job.job_id) for job in executor.map_array(start_supervisor, run_dirs)]


@contextlib.contextmanager
def _executor(submission: Submission) -> Iterator[submitit.SlurmExecutor]:
    """submitit's, set up for a submission; its errors are raised as ClusterError."""
    try:
        executor = submitit.SlurmExecutor(
            folder=logs_folder(submission), max_num_timeout=0, python=python_command(submission)
        )
        executor.update_parameters(**submitit_parameters(submission))
        # What sbatch prints is in the error that is raised; submitit would print it a second time.
        with own_environment(), contextlib.redirect_stderr(io.StringIO()):
            yield executor
    except (FailedJobError, FailedSubmissionError) as error:
        raise ClusterError(f"sbatch refused the job: {last_line(str(error))}") from error
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


# --------------------------------------------------------------------------- asking


def _from_squeue(ids: Sequence[str]) -> dict[str, JobView] | None:
    """The jobs the controller knows; None when it does not answer."""
    if not ids:
        return {}
    jobs = sorted({job_id.partition("_")[0] for job_id in ids})  # of an array all elements come, a line each
    command = ["squeue", "--noheader", "--states=all", "--array", "--jobs", ",".join(jobs), "--format", "%i|%T|%r"]
    try:
        rows = split_rows(run_command(command))
    except ClusterError as error:
        # Asked for one job only, squeue fails when it has forgotten that one.
        return {} if "Invalid job id" in str(error) else None
    wanted = set(ids)
    return {row[0]: _view_of(row[1], row[2]) for row in rows if len(row) == 3 and row[0] in wanted}


def _from_sacct(ids: Sequence[str]) -> dict[str, JobView]:
    """How jobs ended that the controller has forgotten: they are over, whether accounting knows their end or not."""
    if not ids:
        return {}
    fields = ["--noheader", "--parsable2", "--allocations", "--array", "--format", "JobID,State"]
    rows = rows_of(["sacct", *fields, "--jobs", ",".join(sorted({job_id.partition("_")[0] for job_id in ids}))])
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
