"""What submitit starts in each task: it hands its process over to the supervisor at once.

Nothing interesting is pickled: the job gets the run directory and reads all else from it.
"""

from __future__ import annotations

import os
import signal
import sys


def start_supervisor(run_dir: str) -> None:
    """Replaces this process by the supervisor of the run; never returns."""
    # Slurm's notice before the time limit may come before the supervisor listens for it; its default would kill.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, "-P", "-u", "-m", "launchers.supervisor", run_dir])
