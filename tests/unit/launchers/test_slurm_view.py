"""What Slurm's commands, here programs on PATH, say becomes a view of a job; silence is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchers.slurm import SlurmLauncher
from launchers.view import JobPhase
from pipeline.types import Handle, LauncherKind

FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ANSWER = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def program(folder: Path, name: str, script: str) -> None:
    """A command of that name that does what `script` says."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("squeue", "sacct", "phase", "word"),
    [
        ("echo '7|PENDING|Priority'", "exit 1", JobPhase.pending, "PENDING"),
        ("echo '7|PENDING|JobHeldUser'", "exit 1", JobPhase.held, "PENDING"),
        ("echo '7|RUNNING|None'", "exit 1", JobPhase.running, "RUNNING"),
        ("echo '7|COMPLETING|None'", "exit 1", JobPhase.running, "COMPLETING"),
        ("echo '7|NODE_FAIL|None'", "exit 1", JobPhase.over, "NODE_FAIL"),
        (FORGOTTEN, "echo '7|CANCELLED by 0'", JobPhase.over, "CANCELLED"),
        (FORGOTTEN, "echo '7|OUT_OF_MEMORY'", JobPhase.over, "OUT_OF_MEMORY"),
        (FORGOTTEN, NO_ACCOUNTING, JobPhase.over, ""),
        ("true", "true", JobPhase.over, ""),
        (NO_ANSWER, "echo '7|COMPLETED'", JobPhase.unknown, ""),
        ("exit 127", "exit 127", JobPhase.unknown, ""),
    ],
)
def test_view(
    squeue: str, sacct: str, phase: JobPhase, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "squeue", squeue)
    program(tmp_path, "sacct", sacct)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    handle = Handle(run_id="r", attempt=1, launcher=LauncherKind.slurm, job_id="7", submitted_at=0.0)
    view = SlurmLauncher().view([handle])["7"]
    assert (view.phase, view.word) == (phase, word)


def test_many_jobs_cost_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue", f"echo x >> {tmp_path}/calls; echo '1|RUNNING|None'; echo '2|FAILED|None'")
    program(tmp_path, "sacct", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    handles = [
        Handle(run_id="r", attempt=1, launcher=LauncherKind.slurm, job_id=str(job), submitted_at=0.0) for job in (1, 2)
    ]
    views = SlurmLauncher().view(handles)
    assert [views[job].phase for job in ("1", "2")] == [JobPhase.running, JobPhase.over]
    assert (tmp_path / "calls").read_text().count("x") == 1
