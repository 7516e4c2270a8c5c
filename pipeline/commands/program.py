"""What a user has to type to call himori again, from where they are."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from pipeline.rundir import RunDir


def own_name() -> str:
    """`himori` where the shell finds it, else the path it was called by, relative if that is shorter."""
    called = Path(sys.argv[0])
    if called.name != "himori" or shutil.which("himori") == str(called):
        return "himori"
    return shlex.quote(min(str(called), os.path.relpath(called), key=len))


def name_of(run: RunDir) -> str:
    """What names a run on the command line: its id where the run root is the usual one, else its path."""
    usual = Path(os.environ.get("HIMORI_RUN_ROOT", "runs")).resolve()
    return run.run_id if run.path.parent == usual else shlex.quote(str(run.path))
