"""plan, submit and run: one request, printed or executed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipeline.calibration_files import find_calibration
from pipeline.code_snapshot import keep_code, read_code
from pipeline.commands.program import name_of, own_name
from pipeline.commands.request import Request, build_request, check_place, load_experiment, trainable, write_run
from pipeline.errors import ConfigError, HimoriError, PlanRefused
from pipeline.planning.estimates import search_layouts
from pipeline.planning.render_estimates import search_text
from pipeline.rundir import RunDir, create_run_dir, to_jsonable
from pipeline.submission import job_script
from pipeline.types import Handle, LauncherKind, Submission


def plan(arguments: argparse.Namespace) -> int:
    """Prints the request, or the best layouts for it; changes nothing."""
    if arguments.multirun:
        return _of_sweeps("plan", arguments)
    if arguments.search:
        return _search(arguments)
    request = build_request(arguments)
    run_dir = Path(request.experiment.run_root) / "RUN_ID"
    if arguments.check:
        return _check(request.submission(run_dir), as_json=arguments.json)
    if arguments.json:
        submission = request.submission(run_dir)
        document = {
            "experiment": to_jsonable(request.experiment),
            "plan": to_jsonable(request.plan),
            "submission": to_jsonable(submission),
            "job_script": job_script(submission),
        }
        print(json.dumps(document, indent=1))
    else:
        print(request.text(run_dir), end="")
        why_not = request.why_untrainable()
        if why_not:
            print(f"\nplanned only, can't be submitted yet\n  {why_not}")
    return 0


def _check(submission: Submission, *, as_json: bool) -> int:
    from launchers.slurm_check import check_submission  # plan has to answer at once, and needs none

    if submission.launcher is not LauncherKind.slurm:
        raise ConfigError("--check: asks a Slurm cluster; give cluster=NAME of one")
    estimate = check_submission(submission)
    if as_json:
        print(json.dumps(to_jsonable(estimate), indent=1))
    else:
        print(f"sbatch would take it: {estimate.said}")
    return 0


def _search(arguments: argparse.Namespace) -> int:
    experiment = load_experiment(arguments).experiment
    calibration = find_calibration(experiment.calibration, Path(experiment.run_root))
    accept = trainable(experiment)
    job, result = search_layouts(experiment, calibration, accept=accept)
    if result.best and not result.accepted:
        print("none of what this version can train fits; these can be planned only", file=sys.stderr)
    print(json.dumps(to_jsonable(result), indent=1) if arguments.json else search_text(job, result, accept))
    return 0


def submit(arguments: argparse.Namespace) -> int:
    """Hands the request to its launcher and returns at once."""
    if arguments.multirun:
        return _of_sweeps("submit", arguments)
    request = build_request(arguments)
    if not request.cluster_named:
        raise ConfigError(
            "cluster: not chosen, and the default trains on this machine; give cluster=NAME (cluster=local to mean it)"
        )
    run, handle = hand_over(request)
    if arguments.json:
        print(json.dumps({"run_id": run.run_id, "run_dir": str(run.path), "job_id": handle.job_id}))
        return 0
    where = "job" if handle.launcher is LauncherKind.slurm else "session"
    print(f"run   {run.run_id}")
    print(f"{where:<5} {handle.job_id}")
    print(f"dir   {run.path}")
    print(f"next  {own_name()} status {name_of(run)}   (logs -f, wait, cancel)")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Submits, follows to the end, and says where everything is."""
    if arguments.multirun:
        return _of_sweeps("run", arguments)
    from pipeline.commands.follow import follow

    request = build_request(arguments)
    started, _ = hand_over(request)
    print(f"run {started.run_id} in {started.path}", flush=True)
    return follow(started, request.experiment.recipe.steps)


def _of_sweeps(verb: str, arguments: argparse.Namespace) -> int:
    """The same verb for a sweep, with the launchers it needs: one plan has to answer at once."""
    from pipeline.commands import sweeps

    of_sweeps = {"plan": sweeps.plan, "submit": sweeps.submit, "run": sweeps.run}
    return of_sweeps[verb](arguments)


def hand_over(request: Request) -> tuple[RunDir, Handle]:
    """Writes a run and submits it; raises PlanRefused, ConfigError or ClusterError."""
    from launchers.launcher import launcher_for  # plan has to answer at once, and needs none

    why_not = request.why_untrainable()
    if why_not:  # every rank would refuse it too, but only once the job has its nodes
        raise PlanRefused(why_not)
    check_place(request)
    run = create_run_dir(Path(request.experiment.run_root), request.experiment.name)
    keep_code(read_code(), Path(request.experiment.run_root))
    submission = write_run(request, run)
    try:
        return run, launcher_for(submission.launcher).submit(run, submission)
    except HimoriError as error:
        raise type(error)(f"{error} (run {run.run_id} stays unsubmitted)") from error
