"""What the configuration says about binding reaches the binder, and what has no effect is refused."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.cli import HIMORI
from unit.placement.recorded import local_ranks, snapshot_of

from pipeline.config import load
from pipeline.placement.binding import bind
from pipeline.placement.memory import MemoryMode
from pipeline.placement.policy import BindingPolicy, CpuPolicy, binding_policy


def policy(*overrides: str) -> BindingPolicy:
    experiment = load(overrides).experiment
    return binding_policy(experiment.cluster, experiment.hardware)


def test_the_defaults_are_the_binders_own() -> None:
    assert policy() == BindingPolicy()


def test_each_key_reaches_the_binder() -> None:
    asked = policy(
        "cluster.binding=spread",
        "cluster.exclusive=false",
        "cluster.bind_memory_gib_per_rank=1.5",
        "hardware.node_spec.excluded_nics=[mlx5_9,0000:17:00.0]",
    )
    assert asked == BindingPolicy(
        cpus=CpuPolicy.spread,
        node_is_shared=True,
        memory_bytes_per_rank=3 << 29,
        excluded_nics=("mlx5_9", "0000:17:00.0"),
    )


@pytest.mark.parametrize(("gib", "mode"), [(4, MemoryMode.bind), (4000, MemoryMode.preferred)])
def test_memory_is_bound_hard_where_there_is_room(gib: int, mode: MemoryMode) -> None:
    snapshot = snapshot_of("laptop")
    assert snapshot.nodes[0].memory_free_bytes
    (binding,) = bind(snapshot, local_ranks(1), policy(f"cluster.bind_memory_gib_per_rank={gib}"))
    assert binding.memory.mode is mode
    assert any("no hard binding" in warning for warning in binding.warnings) == (mode is not MemoryMode.bind)


def test_excluded_nics_are_left_alone_by_name_and_by_bus_id() -> None:
    snapshot = snapshot_of("azure-ndv5")
    first, second = snapshot.nics[:2]
    excluded = BindingPolicy(excluded_nics=(first.name, second.bdf or ""))
    for binding in bind(snapshot, local_ranks(8), excluded):
        assert not {first.name, second.name} & {*binding.nics, *binding.compute_nics}
        assert binding.nics


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*HIMORI, "plan", *arguments, "experiment=demo"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("cluster.bind_memory_gib_per_rank=0",), "got 0; allowed: above 0"),
        (("cluster.bind_memory_gib_per_rank=1", "cluster.binding=none"), "has no effect with cluster.binding=none"),
    ],
)
def test_what_can_not_be_done_is_refused_by_the_plan(overrides: tuple[str, ...], said: str) -> None:
    done = plan(*overrides)
    assert done.returncode == 7
    assert said in done.stderr


def test_the_plan_says_what_is_strict_and_hard() -> None:
    done = plan("--strict-profile", "cluster.bind_memory_gib_per_rank=2")
    assert "strict: a node that is not what laptop expects ends the run" in done.stdout
    assert "memory bound hard where its node has 2 GiB free for each rank there" in done.stdout
    document = json.loads(plan("--strict-profile", "--json").stdout)
    assert document["experiment"]["cluster"]["strict_profile"] is True
    assert "strict: a node" not in plan().stdout
