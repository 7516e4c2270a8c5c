"""Who am I in this job: the launcher's environment variables read once into a typed value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import hostlist

from pipeline.errors import ClusterError
from pipeline.types import LauncherKind

LOCAL_RESTARTS = "HIMORI_LOCAL_RESTARTS"
"""Set by the session of a local run, as SLURM_RESTART_COUNT is by Slurm."""
LOCAL_NODE = "local"
"""Name of the only node of a local run; a host name would tie files to a machine for no use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task of the job step, as its launcher numbers it."""

    launcher: LauncherKind
    job_id: str
    """As the handle has it: the place in a job array instead of the number Slurm gives each of its elements."""
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    """Ranks on this node."""
    node_rank: int
    nodes: int
    node: str
    first_host: str
    """Host on which rank 0 runs."""
    end_time: float | None
    """When the scheduler will end the job, seconds since the epoch."""
    restarts: int = 0
    """How often the job was started before."""

    @property
    def is_node_leader(self) -> bool:
        """Whether this task serves the others on its node."""
        return self.local_rank == 0

    @property
    def is_job_leader(self) -> bool:
        """Whether this task serves the whole job."""
        return self.rank == 0


def read_task(environ: Mapping[str, str]) -> Task:
    """The task that `environ` describes.

    Raises ClusterError when a variable the launcher has to set is missing.
    """
    try:
        return _slurm_task(environ) if "SLURM_PROCID" in environ else _local_task(environ)
    except KeyError as error:
        raise ClusterError(
            f"the launcher did not set {error.args[0]}: the supervisor only runs inside a job; use `himori submit`"
        ) from error


def _slurm_task(environ: Mapping[str, str]) -> Task:
    node_rank = int(environ["SLURM_NODEID"])
    per_node = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    end_time = environ.get("SLURM_JOB_END_TIME")
    return Task(
        launcher=LauncherKind.slurm,
        job_id=_job_id(environ),
        rank=int(environ["SLURM_PROCID"]),
        ranks=int(environ["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(environ["SLURM_LOCALID"]),
        local_ranks=per_node[node_rank],
        node_rank=node_rank,
        nodes=int(environ["SLURM_STEP_NUM_NODES"]),
        node=environ["SLURMD_NODENAME"],
        first_host=str(hostlist.expand_hostlist(environ["SLURM_STEP_NODELIST"])[0]),
        end_time=float(end_time) if end_time else None,
        restarts=int(environ.get("SLURM_RESTART_COUNT", "0")),
    )


def _job_id(environ: Mapping[str, str]) -> str:
    array = environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{environ['SLURM_ARRAY_TASK_ID']}" if array else environ["SLURM_JOB_ID"]


def _local_task(environ: Mapping[str, str]) -> Task:
    ranks = int(environ["SUBMITIT_LOCAL_NTASKS"])
    return Task(
        launcher=LauncherKind.local,
        job_id=environ["SUBMITIT_LOCAL_JOB_ID"],
        rank=int(environ["SUBMITIT_LOCAL_GLOBALID"]),
        ranks=ranks,
        local_rank=int(environ["SUBMITIT_LOCAL_LOCALID"]),
        local_ranks=ranks,
        node_rank=0,
        nodes=1,
        node=LOCAL_NODE,
        first_host="127.0.0.1",
        end_time=None,
        restarts=int(environ.get(LOCAL_RESTARTS, "0")),
    )


def tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` as one number a node: [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ClusterError(f"SLURM_STEP_TASKS_PER_NODE={text!r} can't be read; expected a form like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
