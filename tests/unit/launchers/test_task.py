"""The launcher's variables become a typed task."""

from __future__ import annotations

import pytest

from launchers.task import read_task, tasks_per_node
from pipeline.errors import ClusterError
from pipeline.types import LauncherKind

SLURM = {
    "SLURM_JOB_ID": "71",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_STEP_NODELIST": "n[09-10]",
    "SLURMD_NODENAME": "n10",
}


def test_a_slurm_task() -> None:
    task = read_task(SLURM)
    assert (task.launcher, task.rank, task.ranks, task.local_ranks) == (LauncherKind.slurm, 3, 5, 2)
    assert (task.node, task.first_host, task.node_rank) == ("n10", "n09", 1)
    assert task.is_node_leader
    assert not task.is_job_leader
    assert task.end_time is None


def test_a_local_task() -> None:
    task = read_task({"SUBMITIT_LOCAL_NTASKS": "2", "SUBMITIT_LOCAL_JOB_ID": "9", "SUBMITIT_LOCAL_GLOBALID": "1",
                      "SUBMITIT_LOCAL_LOCALID": "1"})  # fmt: skip
    assert (task.rank, task.local_ranks, task.nodes, task.first_host) == (1, 2, 1, "127.0.0.1")


@pytest.mark.parametrize("missing", [name for name in SLURM if name != "SLURM_PROCID"])
def test_a_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(ClusterError, match=missing):
        read_task({name: value for name, value in SLURM.items() if name != missing})


def test_outside_a_job_nothing_is_guessed() -> None:
    with pytest.raises(ClusterError, match="only runs inside a job"):
        read_task({})


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("8(x2)", [8, 8])])
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_tasks_per_node_refuses_what_it_cannot_read() -> None:
    with pytest.raises(ClusterError, match="can't be read"):
        tasks_per_node("2(y3)")
