"""Asks Slurm whether it would take a job, and when it would start it; nothing is submitted."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from launchers.own_environment import own_environment
from launchers.slurm_commands import COMMAND_TIMEOUT_S, last_line
from pipeline.errors import ClusterError
from pipeline.submission import job_script
from pipeline.types import Submission


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What the scheduler expects of a job as things are now."""

    start: str
    """Local time of the cluster, as Slurm writes it; empty where it doesn't say."""
    nodes: str
    said: str
    """Its whole answer."""


def check_submission(submission: Submission) -> Estimate:
    """`sbatch --test-only` on the very script; raises ClusterError with Slurm's own words when it would be refused."""
    try:
        with own_environment():
            done = subprocess.run(
                ["sbatch", "--test-only"],
                input=job_script(submission),
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
    except FileNotFoundError as error:
        raise ClusterError("sbatch is not on PATH; load Slurm's commands, --check asks the cluster itself") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"sbatch did not answer within {COMMAND_TIMEOUT_S:g} s; try again") from error
    text = done.stderr or done.stdout
    if done.returncode:
        raise ClusterError(f"sbatch would refuse the job: {last_line(text)}")
    start = re.search(r"to start at (\S+)", text)
    nodes = re.search(r"on nodes? (\S+)", text)
    return Estimate(start=start[1] if start else "", nodes=nodes[1] if nodes else "", said=last_line(text))
