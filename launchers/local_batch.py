"""The session of a local batch: starts the runs of a sweep in their turn, so many at once, and waits for them.

`python -P -m launchers.local_batch BATCH_DIR PARALLEL SUBMITTER START_TICKS`, in a session of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launchers.local import read_process
from pipeline.rundir import AttemptDir, RunDir
from pipeline.sweepdir import Batch, BatchDir

POLL_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a batch to its end."""
    path, parallel, submitter, start_ticks = argv or sys.argv[1:]
    batch = BatchDir(Path(path))
    members = _wait_for_release(batch, int(submitter), int(start_ticks))
    if members is None:
        print("the submission was cut short; nothing was started", flush=True)
        return 1
    run_root = batch.path.parents[3]
    running: list[subprocess.Popen[bytes]] = []
    for member in members.members:
        running = _until_fewer(running, int(parallel))
        attempt = RunDir(run_root / member.run_id).last_attempt()
        if attempt and not attempt.cancel_file.exists() and not attempt.end_file.exists():
            running.append(_start(attempt))
    _until_fewer(running, 1)
    return 0


def _wait_for_release(batch: BatchDir, submitter: int, start_ticks: int) -> Batch | None:
    """The members, once the submitter has written the last of its files; None when it died before."""
    while not batch.released_file.exists():
        if not _lives(submitter, start_ticks):
            return batch.read() if batch.released_file.exists() else None
        time.sleep(POLL_S)
    return batch.read()


def _lives(pid: int, start_ticks: int) -> bool:
    process = read_process(pid)
    return process is not None and process.start_ticks == start_ticks and not process.zombie


def _start(attempt: AttemptDir) -> subprocess.Popen[bytes]:
    attempt.logs_dir.mkdir(parents=True, exist_ok=True)
    with (attempt.logs_dir / "session.log").open("ab") as output:
        return subprocess.Popen(
            ["bash", str(attempt.job_script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _until_fewer(running: list[subprocess.Popen[bytes]], limit: int) -> list[subprocess.Popen[bytes]]:
    """Waits until fewer than `limit` runs are left; those."""
    while len(left := [process for process in running if process.poll() is None]) >= limit:
        time.sleep(POLL_S)
    return left


if __name__ == "__main__":
    sys.exit(main())
