"""What submitit starts in each task: it hands its process over to the supervisor at once.

Nothing interesting is pickled: the job gets the run directory and reads all else from it.
"""

from __future__ import annotations

import os
import sys


def start_supervisor(run_dir: str) -> None:
    """Replaces this process by the supervisor of the run; never returns."""
    os.execv(sys.executable, [sys.executable, "-P", "-u", "-m", "launchers.supervisor", run_dir])
