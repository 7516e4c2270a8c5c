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
from pipeline.rundir import AttemptDir, RunDir
from pipeline.tracking.provenance import boot_id
from pipeline.types import Handle, Submission

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

    def view(self, handles: Sequence[Handle]) -> dict[str, JobView]:
        """A session is running as long as one of its processes is."""
        return {handle.job_id: _view(handle) for handle in handles}

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
        if handle is None or not session_processes(handle):
            return
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
    if handle.boot_id != boot_id():
        return []
    session = int(handle.job_id)
    return [
        process
        for process in processes()
        if process.session == session and process.start_ticks >= handle.start_ticks and not process.zombie
    ]


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


def _view(handle: Handle) -> JobView:
    if session_processes(handle):
        return JobView(phase=JobPhase.running)
    return JobView(phase=JobPhase.over)


def _handle_of_a_short_run(attempt: AttemptDir, log: Path) -> Handle:
    handle = attempt.read_handle()
    if handle:
        return handle
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise ClusterError(f"the local session did not start: {lines[-1] if lines else 'it said nothing'}; see {log}")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)
