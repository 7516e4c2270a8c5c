"""The job's GPUs by what Slurm and CUDA set, in any form; unknown where it can't be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.hardware.topology import Gpu, MigInstance, TopologyError
from pipeline.hardware.visibility import visible_gpus

BUSES = ["0000:10:00.0", "0000:20:00.0", "0000:30:00.0", "0000:a0:00.0"]
MINORS = [2, 3, 0, 1]
GPUS = [
    Gpu(bdf=bdf, uuid=f"GPU-{i}{i}-x", minor=minor, name="NVIDIA H200")
    for i, (bdf, minor) in enumerate(zip(BUSES, MINORS, strict=True))
][::-1]


@pytest.mark.parametrize(
    ("environment", "places"),
    [
        ({}, [0, 1, 2, 3]),
        ({"SLURM_JOB_GPUS": "0-1"}, [2, 3]),
        ({"SLURM_JOB_GPUS": "0,1,2", "SLURM_STEP_GPUS": "2"}, [0]),
        ({"SLURM_STEP_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "3, 0"}, [0, 3]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-33-x,GPU-11"}, [1, 3]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-22-x/1/0"}, [2]),
        ({"SLURM_JOB_GPUS": "0,1,2", "CUDA_VISIBLE_DEVICES": "0"}, [0, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-5c1b"}, None),
    ],
)
def test_gpus_of_the_job(environment: Mapping[str, str], places: list[int] | None) -> None:
    assert visible_gpus(GPUS, environment) == (None if places is None else tuple(BUSES[i] for i in places))


def test_cuda_numbers_what_the_driver_shows_slurm_what_the_node_has() -> None:
    """A device cgroup leaves two of four GPUs."""
    here = [replace(gpu, is_reachable=gpu.bdf in BUSES[1:3]) for gpu in GPUS]
    assert visible_gpus(here, {}) == tuple(BUSES[1:3])
    assert visible_gpus(here, {"CUDA_VISIBLE_DEVICES": "1"}) == (BUSES[2],)
    assert visible_gpus(here, {"SLURM_JOB_GPUS": "0,2", "CUDA_VISIBLE_DEVICES": "0"}) == (BUSES[0], BUSES[2])
    with pytest.raises(TopologyError, match="no GPU 2, 2 can be reached"):
        visible_gpus(here, {"CUDA_VISIBLE_DEVICES": "2"})


def test_gpus_hidden_from_a_task_are_not_taken_for_absent() -> None:
    """Each task sees a GPU of its own: the ranks of the node don't share that one."""
    one = [replace(gpu, is_reachable=gpu.bdf == BUSES[2]) for gpu in GPUS]
    assert visible_gpus(one, {}, ranks=4) is None
    assert visible_gpus(one, {}, ranks=1) == (BUSES[2],)
    assert visible_gpus(one, {"SLURM_STEP_GPUS": "0-3"}, ranks=4) == tuple(BUSES)
    all_here = [replace(gpu, is_reachable=True) for gpu in GPUS]
    assert visible_gpus(all_here, {"CUDA_VISIBLE_DEVICES": "1"}, ranks=4) == (BUSES[1],)


def test_mig_devices_are_their_gpu() -> None:
    cut = [
        replace(GPUS[0], mig=(part("MIG-5c1b"), part("MIG-5c2b"))),
        replace(GPUS[1], mig=(part("MIG-77"),)),
        *GPUS[2:],
    ]
    assert visible_gpus(cut, {"CUDA_VISIBLE_DEVICES": "MIG-5c2b"}) == (GPUS[0].bdf,)
    assert visible_gpus(cut, {"CUDA_VISIBLE_DEVICES": "MIG-77,MIG-5c1"}) == (GPUS[1].bdf, GPUS[0].bdf)
    for name, count in (("MIG-5c", 2), ("MIG-9", 0)):
        with pytest.raises(TopologyError, match=f"{name} is {count} of the devices here"):
            visible_gpus(cut, {"CUDA_VISIBLE_DEVICES": name})


def part(uuid: str) -> MigInstance:
    return MigInstance(uuid=uuid, gpu_instance=1, compute_instance=0)


def test_without_the_driver_slurm_numbers_by_bus() -> None:
    bare = [replace(gpu, minor=None, uuid=None) for gpu in GPUS]
    assert visible_gpus(bare, {"SLURM_JOB_GPUS": "0-1"}) == tuple(BUSES[:2])
    assert visible_gpus(bare, {"CUDA_VISIBLE_DEVICES": "GPU-11"}) is None


def test_indices_of_unlike_gpus_mean_nothing_without_an_order() -> None:
    mixed = [replace(GPUS[0], name="NVIDIA T4"), *GPUS[1:]]
    assert visible_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(mixed, by_bus) == (BUSES[0],)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SLURM_JOB_GPUS": "0,4"}, "SLURM_JOB_GPUS=0,4: GPU 4 isn't here, the node has 4"),
        ({"SLURM_JOB_GPUS": "a"}, "SLURM_JOB_GPUS: 'a' is no list of ids"),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, "there is no GPU 7, 4 can be reached here"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-9"}, "GPU-9 is 0 of the devices here, must be one"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, "GPU- is 4 of the devices here, must be one"),
    ],
)
def test_gpus_that_are_not_here_are_refused(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        visible_gpus(GPUS, environment)
