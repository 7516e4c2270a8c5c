"""What a worker's environment holds, and what of the inherited one is kept from it."""

from __future__ import annotations

from pathlib import Path

from unit.placement.recorded import local_ranks, snapshot_of

from launchers.messages import Start
from launchers.task import Task
from launchers.worker_environment import Place, merged, worker_variables
from pipeline.placement.binding import bind
from pipeline.types import LauncherKind

TASK = Task(
    launcher=LauncherKind.slurm,
    job_id="1",
    rank=3,
    ranks=8,
    local_rank=3,
    local_ranks=8,
    node_rank=0,
    nodes=1,
    node="n1",
    first_host="n1",
    end_time=None,
)
BINDING = bind(snapshot_of("h800x8-bond"), local_ranks(8))[3]
INHERITED = {
    "PATH": "/bin",
    "OMP_NUM_THREADS": "99",
    "OMP_PROC_BIND": "spread",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "HIMORI_ALLOWED_CPUS": "7",
    "HIMORI_APPLIED": "{}",
}


def environment(place: Place) -> dict[str, str]:
    start = Start(address="n1", port=20000)
    variables = worker_variables(TASK, start, attempt=1, events=Path("/e"), place=place, listen_fd=None)
    assert all(variable.reason for variable in variables)
    return merged(INHERITED, variables)


def test_a_bound_worker_gets_what_its_binding_implies() -> None:
    found = environment(Place(binding=BINDING, digest="d1", threads=1))
    assert found["OMP_NUM_THREADS"] == str(BINDING.cores)
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["NCCL_IB_HCA"].startswith("=")
    assert found["HIMORI_BINDING"] == "d1"
    assert found["PATH"] == "/bin"


def test_an_unbound_worker_gets_its_share_of_threads_and_nothing_of_another_ones_place() -> None:
    found = environment(Place(binding=None, digest="", threads=2))
    assert found["OMP_NUM_THREADS"] == "2"
    assert not {"HIMORI_ALLOWED_CPUS", "HIMORI_APPLIED", "HIMORI_BINDING", "NCCL_IB_HCA"} & set(found)


def test_leaked_binding_wishes_are_scrubbed() -> None:
    found = environment(Place(binding=None, digest="", threads=2))
    assert not {"SLURM_CPU_BIND", "OMP_PROC_BIND"} & set(found)
