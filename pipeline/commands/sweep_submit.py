"""Submits a sweep: what is missing or failed, nothing twice, in as few jobs as the cluster's limits allow.

The order makes every moment safe to be killed in: a point is claimed, its files are written, its job is submitted held,
its handle is written, and only then it is let go. Asking again completes what was begun.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launchers.launcher import Launcher, launcher_for
from launchers.local import read_process
from launchers.slurm_limits import Limits, read_limits
from launchers.sweep_state import PointState, point_states
from pipeline.code_snapshot import keep_code
from pipeline.commands.request import check_place
from pipeline.commands.sweep_request import PlannedPoint, SweepRequest
from pipeline.errors import ClusterError, ConfigError, PlanRefused
from pipeline.run_index import RunIndex
from pipeline.rundir import RunDir, json_text, make_durable, new_run_id, write_json, yaml_text
from pipeline.submission import as_part_of, job_script, resources, runs_file
from pipeline.sweepdir import Batch, Claims, Member, PointOf, SweepDir, claims_of, keep_sweep, own_claim, sweep_dir
from pipeline.tracking.provenance import Provenance, boot_id, collect_provenance
from pipeline.types import LauncherKind, RunState, Submission


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What submitting did."""

    sweep: SweepDir
    submitted: int = 0
    jobs: list[str] = field(default_factory=list)
    """Job ids, one an array."""
    already: dict[str, int] = field(default_factory=dict)
    """Points left alone, by what they are doing."""
    left: int = 0
    """Points that wait for room in the queue."""
    limit: str = ""
    """The limit they wait for."""
    refused: str = ""
    """Why the rest was refused, in the scheduler's words."""


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A point this process may run, as a run that has no files yet."""

    planned: PlannedPoint
    run: RunDir
    submission: Submission
    tries: int


def submit_sweep(request: SweepRequest, arguments: argparse.Namespace) -> Outcome:
    """Submits what of a sweep is missing or failed. Raises UserError and ClusterError before anything is queued."""
    _check(request)
    folder = sweep_dir(request.run_root, request.name, request.digest)
    keep_sweep(folder, request.record(folder.sweep_id, arguments, time.time()))
    return submit_points(folder, request)


def submit_points(folder: SweepDir, request: SweepRequest) -> Outcome:
    """Submits those points of a kept sweep that are missing or failed."""
    keep_code(request.code, request.run_root)
    outcome = Outcome(sweep=folder)
    index = RunIndex(request.run_root)
    states = point_states(folder, [one.digest for one in request.planned], index)
    _complete(states, request)
    todo = [one for one in request.planned if states[one.digest].is_to_run or _is_stuck(states[one.digest])]
    for state in states.values():
        if not state.is_to_run and not _is_stuck(state):
            outcome.already[state.label] = outcome.already.get(state.label, 0) + 1
    if todo:
        _submit_todo(todo, states, folder, request, outcome)
    return outcome


def _submit_todo(
    todo: Sequence[PlannedPoint],
    states: dict[str, PointState],
    folder: SweepDir,
    request: SweepRequest,
    outcome: Outcome,
) -> None:
    kind = todo[0].request.experiment.cluster.launcher
    launcher = launcher_for(kind)
    sample = todo[0].request.submission(request.run_root / "RUN_ID")
    limits = read_limits(sample) if kind is LauncherKind.slurm else Limits(array_size=len(todo), room=None, named="")
    now = todo if limits.room is None else todo[: limits.room]
    outcome.left, outcome.limit = len(todo) - len(now), limits.named
    claimed = list(_claim(now, states, claims_of(request.run_root), folder))
    for state in states.values():
        if state.batch and _is_stuck(state):
            launcher.drop_batch(state.batch)
    provenance = collect_provenance(Path.cwd(), snapshot=request.code.digest)
    for chunk in _chunks(claimed, limits.array_size, together=kind is LauncherKind.local):
        try:
            outcome.jobs.append(_submit_chunk(chunk, folder, request, provenance, launcher))
        except ClusterError as error:
            outcome.refused = str(error)
            break
        outcome.submitted += len(chunk)


# --------------------------------------------------------------------------- what is to be done


def _check(request: SweepRequest) -> None:
    if not request.cluster_named:
        raise ConfigError(
            "cluster: not chosen, and the default trains on this machine; give cluster=NAME (cluster=local to mean it)"
        )
    if not request.planned:
        reasons = {one.reason for one in request.left_out}
        raise PlanRefused(f"-m: none of the {len(request.left_out)} points can run: {sorted(reasons)[0]}")
    clusters = {one.request.experiment.cluster.launcher for one in request.planned}
    roots = {one.request.experiment.run_root for one in request.planned}
    if len(clusters) > 1 or len(roots) > 1:
        raise ConfigError("-m: run_root and the cluster's launcher are the same for all points of a sweep")
    for one in request.planned:
        check_place(one.request)


def _is_stuck(state: PointState) -> bool:
    """Held in the queue by a submitter that died before the last handle was written."""
    held = state.run is not None and state.run.state is RunState.held and not state.being_submitted
    return held and state.batch is not None and state.batch.read_handle() is None


def _complete(states: dict[str, PointState], request: SweepRequest) -> None:
    """Lets go what a killed submitter left complete but held."""
    launcher = launcher_for(request.planned[0].request.experiment.cluster.launcher)
    batches = {state.batch for state in states.values() if state.batch and not state.being_submitted}
    for batch in batches:
        handle = batch.read_handle()
        if handle and not batch.released_file.exists():
            launcher.release_batch(batch, handle)


def _claim(
    todo: Sequence[PlannedPoint], states: dict[str, PointState], claims: Claims, folder: SweepDir
) -> Iterator[_Claimed]:
    """The points nobody else was faster to claim."""
    us = read_process(os.getpid())
    assert us is not None
    boot, now = boot_id(), datetime.datetime.now()
    for one in todo:
        run = _reserved(folder.run_root, one.request.experiment.name, now)
        tries = states[one.digest].tries + 1
        claim = own_claim(run.run_id, folder.sweep_id, boot_id=boot, start_ticks=us.start_ticks)
        if claims.take(one.digest, tries, claim):
            yield _Claimed(one, run, one.request.submission(run.path), tries)
        else:
            run.path.rmdir()


def _reserved(run_root: Path, name: str, now: datetime.datetime) -> RunDir:
    """A new run directory: among ten thousand ids of one second some are alike."""
    while True:
        run = RunDir(run_root / new_run_id(name, now))
        try:
            run.path.mkdir()
        except FileExistsError:
            continue
        return run


def _chunks(claimed: Sequence[_Claimed], size: int, *, together: bool) -> Iterator[list[_Claimed]]:
    """Runs that ask for the same, at most `size` at once."""
    groups: dict[object, list[_Claimed]] = {}
    for one in claimed:
        groups.setdefault("all" if together else resources(one.submission), []).append(one)
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


# --------------------------------------------------------------------------- one job


def _submit_chunk(
    chunk: Sequence[_Claimed], folder: SweepDir, request: SweepRequest, provenance: Provenance, launcher: Launcher
) -> str:
    """Submits runs as one job; its id."""
    cluster = chunk[0].planned.request.experiment.cluster
    batch = folder.new_batch()
    alone = len(chunk) == 1 and cluster.launcher is LauncherKind.slurm
    for index, one in enumerate(chunk):
        submission = one.submission
        if not alone:
            submission = as_part_of(
                submission, batch_dir=str(batch.path), count=len(chunk), parallel=cluster.array_parallelism
            )
            submission = dataclasses.replace(submission, index=index)
        _write_point(one, submission, folder, request.name, provenance)
    members = tuple(Member(digest=one.planned.digest, run_id=one.run.run_id, tries=one.tries) for one in chunk)
    Path(runs_file(str(batch.path))).write_text("".join(f"{one.run.path}\n" for one in chunk), encoding="utf-8")
    write_json(batch.batch_file, Batch(sweep_id=folder.sweep_id, members=members))
    make_durable(batch.path)
    runs = [one.run for one in chunk]
    if alone:
        handle = launcher.submit(runs[0], chunk[0].submission)
        write_json(batch.handle_file, handle)
        write_json(batch.released_file, {"time": time.time()})
        return handle.job_id
    whole = as_part_of(
        chunk[0].submission, batch_dir=str(batch.path), count=len(chunk), parallel=cluster.array_parallelism
    )
    return launcher.submit_batch(batch, runs, whole, parallel=cluster.array_parallelism).job_id


def _write_point(
    one: _Claimed, submission: Submission, folder: SweepDir, sweep_name: str, provenance: Provenance
) -> None:
    """All files of a run that nobody knows of yet, without a rename or a sync each."""
    request, run = one.planned.request, one.run
    point = one.planned.point
    attempt = run.attempt(submission.attempt)
    attempt.path.mkdir(parents=True)
    script = job_script(submission)
    of_sweep = PointOf(
        sweep_id=folder.sweep_id,
        sweep_name=sweep_name,
        number=point.number,
        digest=one.planned.digest,
        choices=point.choices,
    )
    run.config_file.write_text(yaml_text(request.experiment), encoding="utf-8")
    run.point_file.write_text(json_text(of_sweep), encoding="utf-8")
    run.plan_file.write_text(json_text(request.plan), encoding="utf-8")
    run.plan_text_file.write_text(request.text_of(submission), encoding="utf-8")
    run.provenance_file.write_text(json_text(provenance), encoding="utf-8")
    attempt.job_script.touch(mode=0o600)
    attempt.job_script.write_text(script, encoding="utf-8")
    run.submission_file.write_text(json_text(submission), encoding="utf-8")
