"""plan, submit and run of a sweep (-m), and the verbs of `himori sweep`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launchers.slurm_check import check_submission
from launchers.status import progress
from launchers.sweep_state import PointState, point_states
from pipeline.commands.follow import EXIT_CODES
from pipeline.commands.program import own_name
from pipeline.commands.search import begin_search, drive, search_of, start_driver
from pipeline.commands.sweep_end import end_points
from pipeline.commands.sweep_request import SweepRequest, build_sweep
from pipeline.commands.sweep_submit import Outcome, submit_points, submit_sweep
from pipeline.commands.sweep_table import (
    plan_columns,
    print_json,
    print_left_out,
    print_published,
    print_rows,
    published_words,
    sorted_rows,
)
from pipeline.commands.tracking import sync_quietly
from pipeline.errors import ClusterError, ConfigError, UserError
from pipeline.run_index import RunIndex
from pipeline.rundir import RunDir, to_jsonable
from pipeline.submission import resources
from pipeline.sweep_config import load_search
from pipeline.sweepdir import Sweep, SweepDir, find_sweep, list_sweeps
from pipeline.types import DroppedPoint, LauncherKind, Published, RunState, Submission

POLL_S = 2.0
CANCEL_WAIT_S = 60.0
TOLD_AT_ONCE = 20


# --------------------------------------------------------------------------- plan -m, submit -m, run -m


def plan(arguments: argparse.Namespace) -> int:
    """Prints the points of a sweep as one table; changes nothing."""
    request = build_sweep(arguments, trainable_only=False)
    rows = sorted_rows(
        [
            {
                "point": one.point.number,
                **one.point.choices,
                **plan_columns(one.request.plan),
                "published": published_words(one.point.published),
            }
            for one in request.planned
        ],
        arguments.sort,
    )
    if arguments.json:
        published = [to_jsonable(one) for one in _published(request)]
        print_json(rows, request.left_out, name=request.name, digest=request.digest, published=published)
        return 0
    print_rows(rows)
    print_published(_published(request))
    print_left_out(request.left_out)
    print(f"{len(request.planned)} points" + (f", {len(request.left_out)} left out" if request.left_out else ""))
    _print_untrainable(request)
    if arguments.check:
        _check_groups(request)
    return 0


def _check_groups(request: SweepRequest) -> None:
    """Asks the scheduler about one point of each kind of job; raises ClusterError."""
    kinds: dict[object, list[int]] = {}
    submissions: dict[object, Submission] = {}
    for one in request.planned:
        submission = one.request.submission(request.run_root / "RUN_ID")
        if submission.launcher is not LauncherKind.slurm:
            raise ConfigError("--check: asks a Slurm cluster; give cluster=NAME of one")
        kinds.setdefault(resources(submission), []).append(one.point.number)
        submissions.setdefault(resources(submission), submission)
    for kind, numbers in kinds.items():
        estimate = check_submission(submissions[kind])
        print(f"sbatch would take {len(numbers)} points ({numbers[0]}, …): {estimate.said}")


def _published(request: SweepRequest) -> list[Published]:
    """What others published about any of the points, each once."""
    found = {one.says: one for planned in request.planned for one in planned.point.published}
    return list(found.values())


def _print_untrainable(request: SweepRequest) -> None:
    reasons = Counter(reason for one in request.planned if (reason := one.request.why_untrainable()))
    for reason, count in reasons.most_common(3):
        print(f"planned only, can't be submitted yet: {count} points\n  {reason}")


def submit(arguments: argparse.Namespace) -> int:
    """Hands the points of a sweep over that are missing or failed, and returns at once."""
    search = load_search(arguments.overrides, conf_dir=arguments.conf_dir)
    if search:
        folder = begin_search(search, arguments)
        return _report_search(folder, start_driver(folder), as_json=arguments.json)
    request = build_sweep(arguments, trainable_only=True)
    return _report(submit_sweep(request, arguments), request, as_json=arguments.json)


def _report_search(folder: SweepDir, pid: int, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"sweep_id": folder.sweep_id, "sweep_dir": str(folder.path), "driver": pid}))
        return 0
    print(f"search    {folder.sweep_id}")
    print(f"driver    process {pid} on this machine; killed, it goes on when the same is submitted again")
    print(f"log       {folder.path / 'search.log'}")
    print(f"next      {own_name()} sweep table {folder.sweep_id}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Submits a sweep, follows it, and says what came of it."""
    search = load_search(arguments.overrides, conf_dir=arguments.conf_dir)
    if search:
        return drive(begin_search(search, arguments))
    request = build_sweep(arguments, trainable_only=True)
    outcome = submit_sweep(request, arguments)
    _report(outcome, request, as_json=False)
    return _follow(outcome.sweep)


def _report(outcome: Outcome, request: SweepRequest, *, as_json: bool) -> int:
    if as_json:
        document = {
            "sweep_id": outcome.sweep.sweep_id,
            "sweep_dir": str(outcome.sweep.path),
            "points": len(request.planned),
            "submitted": outcome.submitted,
            "jobs": outcome.jobs,
            "already": outcome.already,
            "left": outcome.left,
            "left_out": [{"number": one.number, **one.choices, "reason": one.reason} for one in request.left_out],
        }
        print(json.dumps(document))
    else:
        print_left_out(request.left_out)
        _print_outcome(outcome)
    if outcome.refused:
        raise ClusterError(f"{outcome.refused} ({outcome.submitted} points were submitted; submit again for the rest)")
    return 0


def _print_outcome(outcome: Outcome) -> None:
    print(f"sweep     {outcome.sweep.sweep_id}")
    jobs = f" in {_jobs(outcome.jobs)}" if outcome.jobs else ""
    print(f"submitted {outcome.submitted} points{jobs}")
    for label, count in sorted(outcome.already.items()):
        print(f"          {count} were {label} already")
    if outcome.left:
        print(f"          {outcome.left} wait for room ({outcome.limit}); submit again for them later")
    print(f"next      {own_name()} sweep status {outcome.sweep.sweep_id}   (table, cancel, retry)")


def _jobs(job_ids: Sequence[str]) -> str:
    shown = ", ".join(job_ids[:8]) + (" …" if len(job_ids) > 8 else "")
    return f"job {shown}" if len(job_ids) == 1 else f"{len(job_ids)} jobs: {shown}"


def _follow(sweep: SweepDir) -> int:
    said = ""
    while True:
        states = _states(sweep, sweep.read())
        counts = _counts(states)
        if counts != said:
            print(counts, flush=True)
            said = counts
        if not any(state.is_open for state in states):
            break
        time.sleep(POLL_S)
    return max((EXIT_CODES.get(state.run.state, 5) for state in states if state.run), default=0)


# --------------------------------------------------------------------------- himori sweep


def status(arguments: argparse.Namespace) -> int:
    """How far a sweep is, or all sweeps of a run root."""
    root = Path(arguments.run_root)
    sweeps = [find_sweep(root, wanted) for wanted in arguments.sweeps] or list_sweeps(root)
    documents = []
    for sweep in sweeps:
        kept = sweep.read()
        states = _states(sweep, kept)
        documents.append(_status_document(sweep, kept, states))
    if arguments.json:
        print(json.dumps(documents, indent=1))
    elif not documents:
        print(f"no sweeps in {root}; `{own_name()} submit -m …` makes one")
    else:
        _print_statuses(documents, in_full=bool(arguments.sweeps))
    return 0


def table(arguments: argparse.Namespace) -> int:
    """The points of a sweep: choices, state, newest numbers."""
    sweep = find_sweep(Path(arguments.run_root), arguments.sweep)
    kept = sweep.read()
    states = {state.digest: state for state in _states(sweep, kept)}
    rows = sorted_rows([_point_row(sweep, point.number, point.choices, states[point.digest]) for point in kept.points],
                       arguments.sort)  # fmt: skip
    left_out = [DroppedPoint(number=one.number, choices=one.choices, reason=one.reason) for one in kept.left_out]
    if arguments.json:
        print_json(rows, left_out, sweep_id=sweep.sweep_id, name=kept.name)
        return 0
    print_rows(rows)
    print_left_out(left_out)
    return 0


def cancel(arguments: argparse.Namespace) -> int:
    """Ends what of a sweep waits or runs."""
    sweep = find_sweep(Path(arguments.run_root), arguments.sweep)
    kept = sweep.read()
    alive = [state for state in _states(sweep, kept) if state.is_open and state.run]
    end_points(sweep, alive)
    left = _wait_until_closed(sweep, kept, CANCEL_WAIT_S)
    print(f"{sweep.sweep_id}  {len(alive) - left} points ended" + (f", {left} still are on their way" if left else ""))
    return 0


def retry(arguments: argparse.Namespace) -> int:
    """Submits what of a sweep is missing or failed again, from the code it was first submitted with."""
    sweep = find_sweep(Path(arguments.run_root), arguments.sweep)
    kept = sweep.read()
    if search_of(sweep):
        raise UserError(f"{sweep.sweep_id}: is a search; submit it again, and it goes on")
    conf_dir = Path(kept.conf_dir) if kept.conf_dir else None
    again = argparse.Namespace(overrides=list(kept.overrides), conf_dir=conf_dir)
    request = build_sweep(again, trainable_only=True, code_of=(kept.code, sweep.run_root))
    wanted = {point.digest for point in kept.points}
    planned = tuple(one for one in request.planned if one.digest in wanted)
    if len(planned) != len(wanted):
        raise UserError(
            f"{sweep.sweep_id}: {len(wanted) - len(planned)} of its points are configured otherwise now; "
            "`himori submit -m` with the same overrides makes a new sweep of them"
        )
    outcome = submit_points(sweep, dataclasses.replace(request, planned=planned))
    return _report(outcome, request, as_json=arguments.json)


# --------------------------------------------------------------------------- what they share


def _states(sweep: SweepDir, kept: Sweep) -> list[PointState]:
    index = RunIndex(sweep.run_root)
    found = point_states(sweep, [point.digest for point in kept.points], index)
    _tell_mlflow(sweep, [state.run.run_id for state in found.values() if state.run and state.run.reaped])
    return [found[point.digest] for point in kept.points]


def _tell_mlflow(sweep: SweepDir, run_ids: Sequence[str]) -> None:
    """Tells MLflow the ends found out just now, of runs it can know of; very many are left to `himori sync`."""
    runs = [RunDir(sweep.run_root / run_id) for run_id in run_ids]
    begun = [run for run in runs if (attempt := run.last_attempt()) and attempt.journal_dir.is_dir()]
    sync_quietly(*begun[:TOLD_AT_ONCE])
    if len(begun) > TOLD_AT_ONCE:
        print(f"{len(begun) - TOLD_AT_ONCE} more ended untold: `{own_name()} sync` brings MLflow up to date",
              file=sys.stderr)  # fmt: skip


def _counts(states: Sequence[PointState]) -> str:
    counts = Counter(state.label for state in states)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common())


def _status_document(sweep: SweepDir, kept: Sweep, states: Sequence[PointState]) -> dict[str, object]:
    failures = Counter(
        state.run.message for state in states if state.run and state.run.state in (RunState.failed, RunState.unknown)
    )
    return {
        "sweep_id": sweep.sweep_id,
        "name": kept.name,
        "sweep_dir": str(sweep.path),
        "keys": list(kept.keys),
        "points": len(kept.points),
        "left_out": len(kept.left_out),
        "states": dict(Counter(state.label for state in states)),
        "over": not any(state.is_open for state in states),
        "failures": dict(failures.most_common(5)),
    }


def _print_statuses(documents: Sequence[dict[str, object]], *, in_full: bool) -> None:
    listed = Table(box=None, pad_edge=False)
    for heading in ("sweep", "points", "states", "varies"):
        listed.add_column(heading, no_wrap=heading == "sweep", justify="right" if heading == "points" else "left")
    for one in documents:
        states, keys = one["states"], one["keys"]
        assert isinstance(states, dict)
        assert isinstance(keys, list)
        text = ", ".join(f"{count} {label}" for label, count in states.items())
        listed.add_row(str(one["sweep_id"]), str(one["points"]), text, ", ".join(keys))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 250).print(listed)
    for one in documents if in_full else ():
        failures = one["failures"]
        assert isinstance(failures, dict)
        for message, count in failures.items():
            print(f"failed    {count} points: {message}")


def _point_row(sweep: SweepDir, number: int, choices: dict[str, str], state: PointState) -> dict[str, object]:
    run = RunDir(sweep.run_root / state.run.run_id) if state.run else None
    attempt = run.last_attempt() if run else None
    newest = progress(attempt) if attempt else {}
    return {
        "point": number,
        **choices,
        "state": state.label,
        "step": int(newest["step"]) if "step" in newest else None,
        "loss": newest.get("train/loss"),
        "tokens_per_s": newest.get("throughput/tokens_per_s"),
        "tries": state.tries,
        "run": state.run.run_id if state.run else None,
        "message": (state.run.message or None) if state.run else None,
    }


def _wait_until_closed(sweep: SweepDir, kept: Sweep, timeout_s: float) -> int:
    """Waits for the ends; how many points are still open."""
    deadline = time.monotonic() + timeout_s
    while (left := sum(state.is_open for state in _states(sweep, kept))) and time.monotonic() < deadline:
        time.sleep(POLL_S / 2)
    return left
