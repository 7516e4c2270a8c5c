"""The tree of errors, each with the exit code the command line gives it.

HimoriError (1)
├── UserError (2)          what the user typed or configured can't be done
│   ├── ConfigError        an override or a config file
│   ├── DataError          text, tokens or weights that can't be read or trained on
│   └── RunNotFound        no such run directory
├── ClusterError (3)       the scheduler refused or didn't answer
├── TrackingError (3)      the tracking store can't be reached or won't take the run
├── PlanRefused (7)        the request can't run on this hardware or breaks a rule
└── RunDirError (1)        a run directory can't be read or written as it must be
"""

from __future__ import annotations


class HimoriError(Exception):
    """Base of all errors with a message meant for people: one line, no traceback."""

    exit_code = 1


class UserError(HimoriError):
    """What the user asked for can't be done; the message says what, got, allowed and the next step."""

    exit_code = 2


class ConfigError(UserError):
    """An override or a config file is wrong."""


class DataError(UserError):
    """Text, tokens or weights can't be used; the message names the file and where in it."""


class RunNotFound(UserError):
    """No run has that id."""


class ClusterError(HimoriError):
    """The scheduler refused a request or did not answer."""

    exit_code = 3


class TrackingError(HimoriError):
    """The tracking store can't be reached, is busy or won't take the run; what is missing can be synced later."""

    exit_code = 3


class PlanRefused(HimoriError):
    """The request breaks a rule of the model, the hardware or Megatron-Core."""

    exit_code = 7


class RunDirError(HimoriError):
    """A run directory is damaged, from another version, or can't be written."""
