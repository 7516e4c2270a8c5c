"""resume: another attempt of a run that is over, from its newest checkpoint, under the same run id and MLflow run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from launchers.launcher import launcher_for
from launchers.status import RunStatus, run_status
from pipeline.checkpoints import newest_whole
from pipeline.commands.program import name_of, own_name
from pipeline.errors import HimoriError, UserError
from pipeline.rundir import RunDir, find_run, write_json, write_text
from pipeline.submission import job_script, prepare
from pipeline.types import RunState, Submission


def resume(arguments: argparse.Namespace) -> int:
    """Hands another attempt to the launcher of the run and returns at once."""
    run = find_run(Path(arguments.run_root), arguments.run)
    status = run_status(run)
    done = _step_to_go_on_from(run)
    submission = _submission(run, steps=_steps(run, status, arguments.steps, done=done))
    attempt = run.attempt(submission.attempt)
    write_text(attempt.job_script, job_script(submission), mode=0o600)
    write_json(run.submission_file, submission)
    try:
        handle = launcher_for(submission.launcher).submit(run, submission)
    except HimoriError as error:
        raise type(error)(f"{error} (attempt {submission.attempt} of run {run.run_id} stays unsubmitted)") from error
    if arguments.json:
        document = {"run_id": run.run_id, "attempt": submission.attempt, "job_id": handle.job_id, "from_step": done}
        print(json.dumps(document))
        return 0
    start = f"goes on from step {done}" if done else "starts at the beginning: it has no whole checkpoint"
    print(f"run   {run.run_id}, attempt {submission.attempt} {start}")
    print(f"job   {handle.job_id} ({handle.launcher.value})")
    print(f"next  {own_name()} status {name_of(run)}   (logs -f, wait, cancel)")
    return 0


def _step_to_go_on_from(run: RunDir) -> int:
    newest = newest_whole(run)
    return newest.step if newest else 0


def _steps(run: RunDir, status: RunStatus, wanted: int | None, *, done: int) -> int | None:
    """The steps to train to, None for those of the recipe; raises UserError where there is nothing to resume."""
    if status.state in (RunState.queued, RunState.running, RunState.held):
        raise UserError(
            f"run {run.run_id} is {status.state.value}; only a run that is over can be resumed, `himori cancel` ends it"
        )
    before = run.read_resumed_experiment().recipe.steps
    if wanted is None and status.state is RunState.finished:
        raise UserError(f"run {run.run_id} has done all of its {before} steps; train it on with --steps N")
    if wanted is not None and wanted <= done:
        raise UserError(f"--steps: {wanted}, but step {done} is done already; give more")
    return wanted if wanted is not None else run.read_submission().steps


def _submission(run: RunDir, *, steps: int | None) -> Submission:
    """The request for the next attempt, with the interpreter and the code of the last one."""
    last = run.read_submission()
    numbers = [attempt.number for attempt in run.attempts()]
    return prepare(
        run.read_experiment(),
        run.read_plan(),
        run_dir=str(run.path),
        python=last.python,
        code_dir=last.code_dir,
        attempt=max(numbers, default=0) + 1,
        steps=steps,
    )
