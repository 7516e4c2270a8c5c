"""The ways in which a run can end early that are no bug: each is one line for people."""

from __future__ import annotations

from pipeline.errors import HimoriError


class RunFailed(HimoriError):
    """The run can't go on."""

    exit_code = 5


class RendezvousFailed(RunFailed):
    """The ranks of the run did not find each other in time."""


class DataMismatch(RunFailed):
    """Ranks of one run read different data."""


class NonFinite(RunFailed):
    """A loss or gradient is infinite or not a number: going on would only spread it."""
