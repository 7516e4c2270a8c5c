"""Ranks on nodes that look like GPU servers, through real Slurm: every certificate, and what turns one red.

Nothing is trained: with `rehearsal=true` all is real but the work of the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificates, ids, ranks_of
from support.cli import Run, Site

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@dataclass(frozen=True)
class Seat:
    """Where a rank belongs; written down by hand from the recordings in slurm/dev/looks."""

    gpu: str
    home: int
    cpus: str
    memory: set[int]
    nic: str


B200 = [
    Seat("0000:13:00.0", 0, "0-15", {0, 1, 2}, "mlx5_0"),
    Seat("0000:23:00.0", 0, "16-31", {0, 1, 2}, "mlx5_1"),
    Seat("0000:43:00.0", 2, "64-79", {0, 1, 2}, "mlx5_4"),
    Seat("0000:53:00.0", 2, "80-95", {0, 1, 2}, "mlx5_5"),
    Seat("0000:63:00.0", 3, "96-111", {3, 4, 5}, "mlx5_6"),
    Seat("0000:73:00.0", 3, "112-127", {3, 4, 5}, "mlx5_7"),
    Seat("0000:83:00.0", 5, "160-175", {3, 4, 5}, "mlx5_8"),
    Seat("0000:93:00.0", 5, "176-191", {3, 4, 5}, "mlx5_9"),
]
H200 = [
    Seat("0000:13:00.0", 0, "0-13,112-125", {0}, "mlx5_0"),
    Seat("0000:33:00.0", 0, "14-27,126-139", {0}, "mlx5_3"),
    Seat("0000:43:00.0", 0, "28-41,140-153", {0}, "mlx5_4"),
    Seat("0000:53:00.0", 0, "42-55,154-167", {0}, "mlx5_5"),
    Seat("0000:63:00.0", 1, "56-69,168-181", {1}, "mlx5_6"),
    Seat("0000:73:00.0", 1, "70-83,182-195", {1}, "mlx5_7"),
    Seat("0000:83:00.0", 1, "84-97,196-209", {1}, "mlx5_8"),
    Seat("0000:93:00.0", 1, "98-111,210-223", {1}, "mlx5_9"),
]
H100_94GB = [
    Seat("0000:13:00.0", 1, "96-143,288-335", {1}, "mlx5_0"),
    Seat("0000:23:00.0", 1, "144-191,336-383", {1}, "mlx5_1"),
    Seat("0000:33:00.0", 0, "0-47,192-239", {0}, "mlx5_2"),
    Seat("0000:43:00.0", 0, "48-95,240-287", {0}, "mlx5_3"),
]
H100_UNEVEN = [
    Seat("0000:13:00.0", 0, "0-7,96-103", {0, 1}, "mlx5_0"),
    Seat("0000:23:00.0", 0, "8-15,104-111", {0, 1}, "mlx5_1"),
    Seat("0000:33:00.0", 0, "16-23,112-119", {0, 1}, "mlx5_2"),
    Seat("0000:43:00.0", 1, "24-47,120-143", {0, 1}, "mlx5_3"),
]
STORAGE = {"mlx5_2", "mlx5_3"}
"""Of the B200 node."""


def rehearse(site: Site, nodes: str, *overrides: str, hardware: str = "sakura_phy_b200") -> Run:
    """Submits a run of one rank a GPU that ends once all have looked at themselves."""
    count = nodes.count(",") + 1
    return site.submit(
        f"hardware={hardware}",
        "rehearsal=true",
        "ranks=null",
        f"nodes={count}",
        "recipe.global_batch=192",
        f"cluster.sbatch.nodelist='{nodes}'",
        *overrides,
    )


HALF = ("cluster.exclusive=false", "cluster.ranks_per_node=4", "cluster.cpus_per_rank=24")


@pytest.fixture(scope="module")
def finished(look_site: Site) -> Mapping[str, Run]:
    """All runs of this module, in the queue at once; every one of them went to its end."""
    broken = {
        "PYTHONPATH": str(SUPPORT / "rebind"),
        "REBIND_CPUS": "1",
        "REBIND_NODE": "2:5",
        "REBIND_NIC": "3:mlx5_2",
    }
    runs = {
        "sixteen": rehearse(look_site, "n1,n2"),
        "uneven": rehearse(look_site, "n3,n4", hardware="tsubame4_h100"),
        "half": rehearse(look_site, "n1", *HALF),
        "broken": rehearse(replace(look_site, environment={**look_site.environment, **broken}), "n1", *HALF),
        **restricted_runs(look_site),
    }
    assert {name: run.wait() for name, run in runs.items()} == dict.fromkeys(runs, 0)
    return runs


def restricted_runs(site: Site) -> dict[str, Run]:
    """Two ranks each, on a node where something isn't allowed."""
    two = ("cluster.exclusive=false", "cluster.ranks_per_node=2", "cluster.cpus_per_rank=112")
    narrow = site.run_root.parent / "narrow-python"
    narrow.write_text(f'#!/bin/sh\nexec taskset -c 8-11 {sys.executable} "$@"\n')
    narrow.chmod(0o755)
    forbidden = "cluster.setup=['export FAKENODE_DENY=mempolicy']"
    return {
        "strict container": rehearse(site, "n2", *two, f"cluster.python={narrow}", forbidden),
        "cpuset.mems": rehearse(site, "n2", *two, "cluster.setup=['export FAKENODE_MEMS=1']"),
    }


def assert_seated(rank: Mapping[str, Any], seat: Seat, compute: set[str]) -> None:
    """One rank's certificate: planned as written above, and found so from inside the worker."""
    planned, (seen,) = rank["planned"], rank["observed"]
    assert (planned["gpu"], planned["home"], planned["nics"]) == (seat.gpu, seat.home, [seat.nic])
    assert set(planned["cpus"]) == set(seen["cpus"]) == ids(seat.cpus)
    assert planned["memory"]["nodes"][0] == seat.home
    assert (seen["memory"]["mode"], set(seen["memory"]["nodes"])) == ("preferred_many", seat.memory)
    assert seen["environment"]["UCX_NET_DEVICES"] == f"{seat.nic}:1"
    assert seen["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert set(seen["environment"]["NCCL_IB_HCA"].removeprefix("=").split(",")) == compute
    assert (rank["flags"], rank["differences"]) == (["EXACT"], [])


def test_sixteen_ranks_on_two_unlike_nodes_each_have_their_place(finished: Mapping[str, Run]) -> None:
    found = certificates(finished["sixteen"].path)
    assert sorted(found) == ["n1", "n2"]
    for node, seats in (("n1", B200), ("n2", H200)):
        assert len(found[node]["ranks"]) == 8
        assert (found[node]["flags"], found[node]["red"]) == (["EXACT"], [])
        for rank, seat in zip(found[node]["ranks"], seats, strict=True):
            assert_seated(rank, seat, {one.nic for one in seats})
    assert ids(found["n1"]["snapshot"]["allowed"]) == set(range(192))
    assert set(found["n1"]["spare"]) == ids("32-63,128-159")
    assert not STORAGE & {nic for rank in found["n1"]["ranks"] for nic in rank["planned"]["compute_nics"]}


def test_each_of_two_uneven_nodes_is_divided_by_itself(finished: Mapping[str, Run]) -> None:
    found = certificates(finished["uneven"].path)
    for rank, seat in zip(found["n3"]["ranks"], H100_94GB, strict=True):
        assert_seated(rank, seat, {one.nic for one in H100_94GB})
    for rank, seat in zip(found["n4"]["ranks"], H100_UNEVEN, strict=True):
        assert_seated(rank, seat, {f"mlx5_{number}" for number in range(8)})
    cores = [rank["planned"]["cores"] for node in ("n3", "n4") for rank in found[node]["ranks"]]
    assert cores == [48, 48, 48, 48, 8, 8, 8, 24]


def test_a_job_with_half_of_the_cores_stays_within_them(finished: Mapping[str, Run]) -> None:
    (certificate,) = certificates(finished["half"].path).values()
    allowed = ids(certificate["snapshot"]["allowed"])
    assert allowed in (ids("0-95"), ids("96-191"))
    seats = B200[:4] if 0 in allowed else B200[4:]
    for rank, seat in zip(certificate["ranks"], seats, strict=True):
        assert_seated(rank, seat, {one.nic for one in B200})


def test_a_broken_binder_turns_the_certificate_red(finished: Mapping[str, Run]) -> None:
    (certificate,) = certificates(finished["broken"].path).values()
    ranks = ranks_of(finished["broken"].path)
    assert certificate["red"] == [1, 2, 3]
    assert ranks[0]["differences"] == []
    ((shifted,), (elsewhere,), (other_nic,)) = (ranks[number]["differences"] for number in (1, 2, 3))
    assert "runs on CPUs" in shifted
    assert "has memory policy preferred_many 5 instead of preferred_many" in elsewhere
    assert "has UCX_NET_DEVICES mlx5_2:1 instead of mlx5_" in other_nic


def test_a_subset_of_the_cpus_and_forbidden_memory_policies(finished: Mapping[str, Run]) -> None:
    (certificate,) = certificates(finished["strict container"].path).values()
    assert (certificate["snapshot"]["allowed"], certificate["red"]) == ("8-11", [])
    assert "FALLBACK" in certificate["flags"]
    found = [rank["observed"][0]["cpus"] for rank in certificate["ranks"]]
    assert {cpu for cpus in found for cpu in cpus} <= {8, 9, 10, 11}
    assert found == [rank["planned"]["cpus"] for rank in certificate["ranks"]]
    for rank in certificate["ranks"]:
        assert f"preferred_many {rank['planned']['home']} was refused (EPERM)" in rank["denied"]


def test_a_cpuset_without_the_home_node_is_said(finished: Mapping[str, Run]) -> None:
    (certificate,) = certificates(finished["cpuset.mems"].path).values()
    assert certificate["red"] == []
    away = [rank for rank in certificate["ranks"] if rank["planned"]["home"] == 0]
    assert away, "Slurm gave the job no GPU of node 0"
    for rank in away:
        assert rank["flags"] == ["FALLBACK"]
        assert "memory of node 0 and its socket can't be used (allowed: [1])" in rank["warnings"]
        assert rank["observed"][0]["memory"]["mode"] == "default"
        assert rank["observed"][0]["cpus"] == rank["planned"]["cpus"]


@pytest.mark.faults  # sixteen processes of torch: minutes on two cores, and 7 GB
@pytest.mark.timeout(900)
def test_sixteen_ranks_train_where_their_certificates_say(look_site: Site) -> None:
    """Ranks on the CPU: they have no GPUs to sit beside, and are spread over all NUMA nodes."""
    run = look_site.submit(
        "ranks=16",
        "cluster.ranks_per_node=8",
        "cluster.request_gpus=false",
        "cluster.rendezvous_timeout_s=300",
        "cluster.sbatch.nodelist='n1,n2'",
        "recipe.global_batch=32",
        "recipe.steps=10",
    )
    assert run.wait(timeout_s=800) == 0
    found = certificates(run.path)
    for node, homes in (("n1", [0, 0, 1, 2, 3, 3, 4, 5]), ("n2", [0, 0, 0, 0, 1, 1, 1, 1])):
        ranks = found[node]["ranks"]
        assert found[node]["red"] == []
        assert [rank["planned"]["home"] for rank in ranks] == homes
        for rank in ranks:
            assert [seen["moment"] for seen in rank["observed"]] == ["start", "model"]
            assert all(seen["cpus"] == rank["planned"]["cpus"] for seen in rank["observed"])
        cpus = [cpu for rank in ranks for cpu in rank["planned"]["cpus"]]
        assert len(cpus) == len(set(cpus))
    losses = list(run.losses().values())
    assert losses[-1] < losses[0]
