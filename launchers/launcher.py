"""What every launcher can do, and what a scheduler can say about a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from launchers.local import LocalLauncher
from launchers.slurm import SlurmLauncher
from launchers.view import JobView
from pipeline.rundir import RunDir
from pipeline.sweepdir import BatchDir
from pipeline.types import Handle, LauncherKind, Submission


class Launcher(Protocol):
    """Submits, asks after and ends jobs of one kind."""

    def submit(self, run: RunDir, submission: Submission) -> Handle:
        """Hands the attempt over; it may start only once its handle is on disk."""

    def submit_batch(
        self, batch: BatchDir, runs: Sequence[RunDir], submission: Submission, *, parallel: int | None
    ) -> Handle:
        """Hands over runs that ask for the same, at most `parallel` of them running at once; as safe as `submit`."""

    def release_batch(self, batch: BatchDir, handle: Handle) -> None:
        """Lets a batch go whose submission was cut short after the last handle."""

    def drop_batch(self, batch: BatchDir) -> None:
        """Removes what a submission that was cut short has left waiting."""

    def view(self, handles: Sequence[Handle]) -> dict[str, JobView]:
        """What is known of each job, by job id; asked at once for all."""

    def find(self, submission: Submission) -> str | None:
        """The id of a job that belongs to a submission which has no handle."""

    def cancel(self, job_id: str, handle: Handle | None) -> None:
        """Ends a job; one that is over is left alone."""


def launcher_for(kind: LauncherKind) -> Launcher:
    """The launcher of a kind."""
    match kind:
        case LauncherKind.slurm:
            return SlurmLauncher()
        case LauncherKind.local:
            return LocalLauncher()
