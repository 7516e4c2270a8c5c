"""The state of a run as a person would call it, from its directory first and from its scheduler where that is silent.

A run whose supervisors could not say goodbye is given its end here, once: that is the reaper.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launchers.attempts import afterwards
from launchers.launcher import launcher_for
from launchers.view import JobPhase, JobView
from pipeline.errors import RunDirError
from pipeline.rundir import AttemptDir, RunDir, write_json
from pipeline.tracking.journal import Event, read_events
from pipeline.tracking.store import is_network_filesystem
from pipeline.types import Cause, End, Handle, LauncherKind, RunState

TAIL_BYTES = 1 << 16
SETTLE_S = 10.0
"""How long after a job is over its own last files may still be on their way through the file system."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """One run, now."""

    run: RunDir
    state: RunState
    message: str
    handle: Handle | None
    end: End | None
    reaped: bool = False
    """Its end was found out just now; its MLflow run doesn't know yet."""


def run_status(run: RunDir) -> RunStatus:
    """The state of one run."""
    return run_statuses([run])[0]


Views = dict[tuple[LauncherKind, str], JobView]
"""What schedulers said, by launcher and job id."""


def run_statuses(runs: Sequence[RunDir], views: Views | None = None) -> list[RunStatus]:
    """The states of many runs; each scheduler is asked once, and not about what `views` holds."""
    known = {run.run_id: _from_files(run) for run in runs}
    said = dict(views or {})
    open_handles = [status.handle for status in known.values() if status.handle and not status.end]
    said |= job_views([handle for handle in open_handles if (handle.launcher, handle.job_id) not in said])
    return [_with_scheduler(run, known[run.run_id], said) for run in runs]


def wait_until_over(status: RunStatus, timeout_s: float) -> None:
    """Waits until the processes of a run that has its end are gone too: the last of them still tells MLflow."""
    deadline = time.monotonic() + timeout_s
    while status.handle and time.monotonic() < deadline:
        view = launcher_for(status.handle.launcher).view([status.handle])[status.handle.job_id]
        if view.phase not in (JobPhase.running, JobPhase.pending):
            return
        time.sleep(0.5)


def progress(attempt: AttemptDir) -> dict[str, float]:
    """The newest value of each metric of an attempt, and its `step`; empty before the first step."""
    newest: dict[str, float] = {}
    for event in _newest_events(attempt):
        if event.kind == "metrics":
            values, step = event.data["values"], event.data["step"]
            assert isinstance(values, dict)
            assert isinstance(step, int | float)
            newest |= values | {"step": float(step)}
    return newest


def _newest_events(attempt: AttemptDir) -> list[Event]:
    """Events at the ends of an attempt's journals: a long run's journal is not read whole to say where it is."""
    events: list[Event] = []
    for path in attempt.journal_dir.glob("*.jsonl"):
        events += read_events(path, max(0, path.stat().st_size - TAIL_BYTES)).events
    return sorted(events, key=lambda event: event.time)


# --------------------------------------------------------------------------- files, then scheduler


def _from_files(run: RunDir) -> RunStatus:
    """What the directory says."""
    attempt = run.last_attempt()
    if attempt is None:
        return RunStatus(run=run, state=RunState.prepared, message="nothing was submitted", handle=None, end=None)
    try:
        handle, end = attempt.read_handle(), attempt.read_end()
    except RunDirError as error:
        return RunStatus(run=run, state=RunState.unknown, message=str(error), handle=None, end=None)
    if end and _is_settled(end):
        return RunStatus(run=run, state=end.state, message=end.message, handle=handle, end=end)
    return RunStatus(run=run, state=RunState.prepared, message="", handle=handle, end=None)


def _is_settled(end: End) -> bool:
    """Whether nothing more comes after this end of an attempt."""
    return not (end.continues or end.decided_by_scheduler)


def job_views(handles: Sequence[Handle]) -> Views:
    """What the schedulers say of jobs, each asked once."""
    views: Views = {}
    for kind in LauncherKind:
        mine = [handle for handle in handles if handle.launcher is kind]
        if mine:
            views |= {(kind, job_id): view for job_id, view in launcher_for(kind).view(mine).items()}
    return views


def _with_scheduler(run: RunDir, status: RunStatus, views: Views) -> RunStatus:
    if status.end or status.state is RunState.unknown or run.last_attempt() is None:
        return status
    if status.handle is None:
        return _unsubmitted(run)
    try:
        return _open(run, status.handle, views[(status.handle.launcher, status.handle.job_id)])
    except (RunDirError, FileNotFoundError) as error:
        return RunStatus(run=run, state=RunState.unknown, message=str(error), handle=status.handle, end=None)


def _open(run: RunDir, handle: Handle, view: JobView) -> RunStatus:
    """A run whose directory knows no end."""
    attempt = run.attempt(handle.attempt)
    if handle.waits and (not view.is_alive or (view.phase is JobPhase.pending and attempt.cancel_file.exists())):
        return _never_began(run, attempt, handle)
    if view.phase is JobPhase.over:
        return _reap(run, attempt, handle, view.word)
    state, message = _alive(attempt, handle, view)
    return RunStatus(run=run, state=state, message=message, handle=handle, end=None)


def _alive(attempt: AttemptDir, handle: Handle, view: JobView) -> tuple[RunState, str]:
    """State of a run whose job isn't over as far as the scheduler tells, and what to say about it."""
    began, ended = _has_begun(attempt), attempt.end_file.exists()
    over = f"attempt {attempt.number} is over{_of_end(attempt)}"
    match view.phase:
        case JobPhase.held:
            hint = "`himori cancel` it or `scontrol release` it"
            return RunState.held, f"job {handle.job_id} is held: {view.detail}; {hint}"
        case JobPhase.pending:
            waits = f"waits in the queue: {view.detail}" if view.detail else "waits in the queue"
            return RunState.queued, f"{over}; {waits} for the next one" if began else waits
        case JobPhase.running:
            now = "training" if began else "starting"
            return RunState.running, f"{over}; the next one is about to start" if ended else now
        case _:
            told = "the scheduler does not answer now; this is what the run directory says"
            return (RunState.running if began else RunState.queued), told


def _has_begun(attempt: AttemptDir) -> bool:
    return any(attempt.journal_dir.glob("*.jsonl"))


def _never_began(run: RunDir, attempt: AttemptDir, handle: Handle) -> RunStatus:
    """A point that waited for its turn and will have none."""
    if attempt.cancel_file.exists():
        end = End(state=RunState.cancelled, message="cancelled before its turn", first=None, time=time.time())
        write_json(attempt.end_file, end)
        return RunStatus(run=run, state=end.state, message=end.message, handle=handle, end=end, reaped=True)
    message = "its batch ended before its turn; nothing was started"
    return RunStatus(run=run, state=RunState.prepared, message=message, handle=handle, end=None)


def _of_end(attempt: AttemptDir) -> str:
    end = attempt.read_end()
    return f" ({end.message})" if end else ""


def _reap(run: RunDir, attempt: AttemptDir, handle: Handle, word: str) -> RunStatus:
    """Gives a run that is over its end, unless it wrote one in the meantime."""
    end = attempt.read_end() or _wait_for_end(attempt)
    if end and _is_settled(end):
        return RunStatus(run=run, state=end.state, message=end.message, handle=handle, end=end)
    end = _settled(end, word) if end else afterwards(run, attempt, word)
    write_json(attempt.end_file, end)
    return RunStatus(run=run, state=end.state, message=end.message, handle=handle, end=end, reaped=True)


def _settled(end: End, word: str) -> End:
    """The end of an attempt after which another one was expected, once the job is over after all."""
    end = replace(end, continues=False, decided_by_scheduler=False, slurm_state=word)
    if word != "CANCELLED":
        return end
    return replace(end, state=RunState.cancelled, cause=Cause.cancelled, message=f"{end.message}; then cancelled")


def _wait_for_end(attempt: AttemptDir) -> End | None:
    """A network file system may show a file seconds after the job that wrote it is over."""
    if not is_network_filesystem(attempt.path):
        return None
    newest = max((path.stat().st_mtime for path in attempt.journal_dir.glob("*.jsonl")), default=0.0)
    while time.time() - newest < SETTLE_S:
        time.sleep(0.5)
        end = attempt.read_end()
        if end:
            return end
    return None


def _unsubmitted(run: RunDir) -> RunStatus:
    """A run without a handle: its submission was cut short, or is under way."""
    try:
        submission = run.read_submission() if run.submission_file.exists() else None
    except RunDirError as error:
        return RunStatus(run=run, state=RunState.unknown, message=str(error), handle=None, end=None)
    job_id = launcher_for(submission.launcher).find(submission) if submission else None
    if job_id and submission and submission.launcher is LauncherKind.local:
        message = "its session is about to start"
        return RunStatus(run=run, state=RunState.queued, message=message, handle=None, end=None)
    if job_id:
        message = f"its submission was cut short: job {job_id} is held and will not start; `himori cancel` removes it"
        return RunStatus(run=run, state=RunState.held, message=message, handle=None, end=None)
    message = "its submission was refused or cut short; nothing was started"
    return RunStatus(run=run, state=RunState.prepared, message=message, handle=None, end=None)
