"""The environment a submission is made in: this process's without what a job around it has left there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def own_environment() -> Iterator[None]:
    """Hides the variables of a job we may be inside of: sbatch and submitit would take them for the new job's."""
    leaked = [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_"))]
    kept = {name: os.environ.pop(name) for name in leaked if name != "SLURM_CONF"}
    try:
        yield
    finally:
        os.environ.update(kept)
