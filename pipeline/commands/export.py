"""export: a checkpoint as a Hugging Face folder, made by a process of its own, since it takes torch."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from pipeline.checkpoints import newest_whole, steps_on_disk
from pipeline.errors import UserError
from pipeline.rundir import RunDir, find_run

EXPORT_MODULE = "pipeline.training.export"


def export(arguments: argparse.Namespace) -> int:
    """Writes the model of a run's checkpoint for others to load."""
    run = find_run(Path(arguments.run_root), arguments.run)
    output = arguments.output.expanduser()
    if output.exists():
        raise UserError(f"-o: {output} is there already; give a folder that is not")
    step = _step(run, arguments.step)
    command = [sys.executable, "-P", "-m", EXPORT_MODULE, str(run.path), str(step), str(output)]
    return subprocess.run(command, check=False).returncode


def _step(run: RunDir, wanted: int | None) -> int:
    there = steps_on_disk(run)
    if wanted is not None and wanted in there:
        return wanted
    newest = newest_whole(run)
    if newest is None:
        raise UserError(f"{run.run_id}: has no checkpoint; train with recipe.checkpoint_every_steps=N")
    if wanted is not None:
        raise UserError(f"--step: {run.run_id} has no checkpoint of step {wanted}; there are: {_some(there)}")
    return newest.step


def _some(steps: list[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
