"""The variables of a binding, and those that must not be inherited."""

from __future__ import annotations

import pytest
from unit.placement.recorded import local_ranks, snapshot_of

from pipeline.hardware.topology import TopologyError
from pipeline.placement.binding import bind
from pipeline.placement.environment import allowed_before_binding, binding_environment, scrubbed_variables

HCAS = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]


def environment(name: str, rank: int, ranks: int) -> dict[str, str]:
    binding = bind(snapshot_of(name), local_ranks(ranks))[rank]
    variables = binding_environment(binding)
    assert all(variable.reason for variable in variables)
    return {variable.name: variable.value for variable in variables}


def test_gpu_node_with_a_nic_each() -> None:
    assert environment("h800x8-bond", 1, 8) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HIMORI_ALLOWED_CPUS": "0-223",
        "HIMORI_NIC": "mlx5_3",
        "NCCL_IB_HCA": "=" + ",".join(HCAS),
        "NVSHMEM_HCA_LIST": ",".join(f"{name}:1" for name in HCAS),
        "OMP_NUM_THREADS": "14",
        "UCX_NET_DEVICES": "mlx5_3:1",
    }


def test_list_for_nccl_is_the_same_on_every_rank() -> None:
    assert len({environment("h800x8-bond", rank, 8)["NCCL_IB_HCA"] for rank in range(8)}) == 1


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("laptop", {"HIMORI_ALLOWED_CPUS", "OMP_NUM_THREADS"}),
        ("h100x8-no-nic", {"HIMORI_ALLOWED_CPUS", "OMP_NUM_THREADS", "CUDA_DEVICE_ORDER"}),
    ],
)
def test_nothing_is_set_for_what_is_not_there(name: str, names: set[str]) -> None:
    assert set(environment(name, 0, 2)) == names


def test_threads_are_cores_not_hardware_threads() -> None:
    assert environment("laptop", 0, 2)["OMP_NUM_THREADS"] == "4"


def test_leaked_bindings_are_scrubbed_and_choices_of_gpus_are_not() -> None:
    inherited = [
        "CUDA_VISIBLE_DEVICES",
        "GOMP_CPU_AFFINITY",
        "KMP_AFFINITY",
        "NCCL_DEBUG",
        "OMP_PLACES",
        "OMP_PROC_BIND",
        "PATH",
        "SLURM_CPU_BIND",
        "SLURM_CPU_BIND_LIST",
        "SLURM_JOB_GPUS",
        "SLURM_MEM_BIND_TYPE",
    ]
    scrubbed = scrubbed_variables(inherited)
    assert [one.name for one in scrubbed] == [inherited[i] for i in (1, 2, 4, 5, 7, 8, 10)]
    assert all(one.reason for one in scrubbed)


def test_a_bound_process_knows_what_it_was_allowed() -> None:
    assert allowed_before_binding({}) is None
    assert allowed_before_binding({"HIMORI_ALLOWED_CPUS": "0-3,8"}) == (0, 1, 2, 3, 8)
    with pytest.raises(TopologyError, match="HIMORI_ALLOWED_CPUS: 'x' is no list"):
        allowed_before_binding({"HIMORI_ALLOWED_CPUS": "x"})
