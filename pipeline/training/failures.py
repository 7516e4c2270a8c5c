"""The ways in which a run can end early that are no bug: each is one line for people."""

from __future__ import annotations

from pipeline.errors import HimoriError
from pipeline.types import WorkerCode


class RunFailed(HimoriError):
    """The run can't go on."""

    exit_code = WorkerCode.failed


class RendezvousFailed(RunFailed):
    """The ranks of the run did not find each other in time."""

    exit_code = WorkerCode.network


class DataMismatch(RunFailed):
    """Ranks of one run read different data."""


class NonFinite(RunFailed):
    """A loss or gradient is infinite, not a number, or far from what it was: going on would only spread it."""

    exit_code = WorkerCode.numerics


class HardwareSuspected(RunFailed):
    """The same step gave something else when it was run again on the same data."""

    exit_code = WorkerCode.hardware


class Interrupted(RunFailed):
    """The ranks were told to end early, and did so together after a step that can be gone on from."""

    exit_code = WorkerCode.interrupted
