"""The exec shim: sets what must hold from a process's first instruction, then becomes that process.

Called as `python -P -m launchers.shim '{"death_signal": 9, "cpus": [0, 1]}' COMMAND ARG...`. Where CPUs are asked for,
the command finds in HIMORI_APPLIED what was applied of its binding.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence

from launchers.applying import APPLIED, apply_binding

PR_SET_PDEATHSIG = 1


def die_with_parent(signal_number: int, expected_parent: int | None = None) -> None:
    """Asks the kernel for `signal_number` once the parent is gone; it stays in force across exec.

    `expected_parent` catches a parent that was gone before the kernel was asked.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if expected_parent is not None and os.getppid() != expected_parent:
        raise SystemExit(f"the parent {expected_parent} is gone")


def command(options: dict[str, object], argv: Sequence[str]) -> list[str]:
    """The shim's own command line in front of `argv`."""
    return [sys.executable, "-P", "-m", "launchers.shim", json.dumps(options), *argv]


def main() -> None:
    """Applies the options of argv[1], then execs the rest."""
    options, argv = json.loads(sys.argv[1]), sys.argv[2:]
    die_with_parent(options["death_signal"], options.get("parent"))
    # Slurm sends its notices to every process of a step: a worker takes them once it listens, and is given them again.
    for number in (
        (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM) if options.get("ignores_notice") else (signal.SIGUSR2,)
    ):
        signal.signal(number, signal.SIG_IGN)
    if options.get("cpus"):
        os.environ[APPLIED] = json.dumps(apply_binding(options))
    if options.get("nice"):
        os.nice(options["nice"])
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
