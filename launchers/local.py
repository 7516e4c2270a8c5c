"""This machine, without a scheduler: a run is a session of processes that outlives the shell it was typed in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.view import JobPhase, JobView
from pipeline.errors import ClusterError
from pipeline.rundir import AttemptDir, RunDir, make_durable, write_json
from pipeline.sweepdir import BatchDir
from pipeline.tracking.provenance import boot_id
from pipeline.types import Handle, LauncherKind, Submission

HANDLE_WAIT_S = 30.0
KILL_AFTER_S = 15.0


class LocalLauncher:
    """Jobs as sessions of this machine."""

    def submit(self, run: RunDir, submission: Submission) -> Handle:
        """Starts the job script in a session of its own and waits until it has written its handle."""
        attempt = run.attempt(submission.attempt)
        attempt.logs_dir.mkdir(parents=True, exist_ok=True)
        log = attempt.logs_dir / "session.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["bash", str(attempt.job_script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + HANDLE_WAIT_S
        while time.monotonic() < deadline and process.poll() is None:
            handle = attempt.read_handle()
            if handle:
                return handle
            time.sleep(0.05)
        return _handle_of_a_short_run(attempt, log)

    def submit_batch(
        self, batch: BatchDir, runs: Sequence[RunDir], submission: Submission, *, parallel: int | None
    ) -> Handle:
        """Starts a session that starts the runs in their turn; it waits for its handle, as they do for theirs."""
        log = batch.path / "session.log"
        us = read_process(os.getpid())
        assert us is not None
        arguments = [str(batch.path), str(parallel or 1), str(us.pid), str(us.start_ticks)]
        command = [submission.python, "-P", "-m", "launchers.local_batch", *arguments]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _with_code(submission.code_dir)},
            )
        own = read_process(process.pid)
        if own is None or process.poll() is not None:
            raise ClusterError(f"the session of the batch did not start; see {log}")
        handles = [_waiting(run.run_id, submission, own) for run in runs]
        for run, handle in zip(runs, handles, strict=True):
            write_json(run.attempt(submission.attempt).handle_file, handle, durable=False)
        make_durable(batch.path)
        write_json(batch.handle_file, handles[0])
        self.release_batch(batch, handles[0])
        return handles[0]

    def release_batch(self, batch: BatchDir, handle: Handle) -> None:  # noqa: ARG002 - the session waits for the file
        """Lets the session begin."""
        write_json(batch.released_file, {"time": time.time()})

    def drop_batch(self, batch: BatchDir) -> None:
        """A session that nobody let go ends by itself; this ends it now."""
        for process in processes():
            if str(batch.path) in _command_line(process.pid):
                _kill(process.pid)

    def view(self, handles: Sequence[Handle]) -> dict[str, JobView]:
        """A session is running as long as one of its processes is."""
        alive = _living_sessions(handles)
        return {handle.job_id: _view(handle, alive=handle.job_id in alive) for handle in handles}

    def find(self, submission: Submission) -> str | None:
        """A session that has just begun and is about to write its handle."""
        script = str(RunDir(Path(submission.run_dir)).attempt(submission.attempt).job_script)
        for process in processes():
            command = _command_line(process.pid)
            if script in command or ("launchers.local_session" in command and submission.run_dir in command):
                return str(process.session)
        return None

    def cancel(self, job_id: str, handle: Handle | None) -> None:  # noqa: ARG002 - the handle says more
        """SIGTERM to the session's supervisors; SIGKILL to what is left much later."""
        if handle is None or handle.waits or not session_processes(handle):
            return  # a run that waits for its turn is passed over: the request for its end is in its directory
        os.killpg(int(handle.job_id), signal.SIGTERM)
        deadline = time.monotonic() + KILL_AFTER_S
        while (left := session_processes(handle)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in left:
            _kill(process.pid)


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it."""

    pid: int
    session: int
    start_ticks: int
    zombie: bool


def session_processes(handle: Handle) -> list[Process]:
    """The living processes of a run's session; none after a reboot or when the number was given to another."""
    return [process for process in processes() if _belongs(process, handle)] if handle.boot_id == boot_id() else []


def is_alive(boot: str, pid: int, start_ticks: int) -> bool | None:
    """Whether that very process lives; None when it is on another machine, or on this one before it was booted."""
    if boot != boot_id():
        return None
    process = read_process(pid)
    return process is not None and process.start_ticks == start_ticks and not process.zombie


def _belongs(process: Process, handle: Handle) -> bool:
    same = process.session == int(handle.job_id) and process.start_ticks >= handle.start_ticks
    return same and not process.zombie


def _living_sessions(handles: Sequence[Handle]) -> set[str]:
    """Sessions of these handles with a living process; /proc is read once."""
    here = {handle.job_id: handle for handle in handles if handle.boot_id == boot_id()}
    if not here:
        return set()
    return {
        str(process.session)
        for process in processes()
        if str(process.session) in here and _belongs(process, here[str(process.session)])
    }


def processes(proc: Path = Path("/proc")) -> Iterator[Process]:
    """All processes of this machine that /proc shows."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name), proc)
            if process:
                yield process


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """One process, or None when it is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return Process(pid=pid, session=int(fields[3]), start_ticks=int(fields[19]), zombie=fields[0] in "ZX")


def _command_line(pid: int, proc: Path = Path("/proc")) -> list[str]:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _view(handle: Handle, *, alive: bool) -> JobView:
    if not alive:
        return JobView(phase=JobPhase.over)
    if handle.waits:
        return JobView(phase=JobPhase.pending, detail="its turn")
    return JobView(phase=JobPhase.running)


def _waiting(run_id: str, submission: Submission, session: Process) -> Handle:
    return Handle(
        run_id=run_id,
        attempt=submission.attempt,
        launcher=LauncherKind.local,
        job_id=str(session.pid),
        submitted_at=time.time(),
        boot_id=boot_id(),
        start_ticks=session.start_ticks,
        waits=True,
    )


def _with_code(code_dir: str) -> str:
    return os.pathsep.join(part for part in (code_dir, os.environ.get("PYTHONPATH", "")) if part)


def _handle_of_a_short_run(attempt: AttemptDir, log: Path) -> Handle:
    handle = attempt.read_handle()
    if handle:
        return handle
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise ClusterError(f"the local session did not start: {lines[-1] if lines else 'it said nothing'}; see {log}")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)
