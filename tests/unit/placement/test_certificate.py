"""A rank is red when it is not where it was put and nobody said so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.placement.recorded import local_ranks, snapshot_of

from pipeline.placement.binding import Binding, BindingFlag, bind
from pipeline.placement.certificate import (
    Applied,
    KernelMemory,
    Moment,
    Observation,
    RankCertificate,
    Refusal,
    certify,
    node_flags,
    table,
)
from pipeline.placement.environment import binding_environment
from pipeline.placement.memory import MemoryMode, MemoryPolicy
from pipeline.placement.policy import BindingPolicy, CpuPolicy

DIGEST = "d1"
PLANNED = bind(snapshot_of("dgxh100-12nic"), local_ranks(8))[2]
NODES = PLANNED.memory.nodes
ENVIRONMENT = {variable.name: variable.value for variable in binding_environment(PLANNED)}
GRANTED = Applied(affinity=True, memory=KernelMemory(mode="preferred_many", nodes=NODES), refused=())
SEEN = Observation(
    moment=Moment.model,
    digest=DIGEST,
    cpus=PLANNED.cpus,
    memory=KernelMemory(mode="preferred_many", nodes=NODES),
    mems_allowed=NODES,
    applied=GRANTED,
    environment=ENVIRONMENT,
    gpu=PLANNED.gpu,
    page_bytes={2: 3 << 30},
)


def refused(what: str, *asked: str, memory: KernelMemory | None = None) -> Applied:
    refusals = tuple(Refusal(what=what, asked=one, error="EPERM") for one in asked)
    return Applied(affinity=what != "cpus", memory=memory, refused=refusals)


def certificate(seen: Observation, planned: Binding = PLANNED) -> RankCertificate:
    return certify(2, planned, [replace(seen, moment=Moment.start), seen], digest=DIGEST)


def test_a_rank_in_its_place_is_not_red() -> None:
    found = certificate(SEEN)
    assert (found.is_red, found.flags, found.warnings) == (False, (BindingFlag.exact,), PLANNED.warnings)


@pytest.mark.parametrize(
    ("seen", "difference"),
    [
        (replace(SEEN, cpus=PLANNED.cpus[1:]), "runs on CPUs"),
        (replace(SEEN, cpus=tuple(cpu + 1 for cpu in PLANNED.cpus)), "runs on CPUs"),
        (replace(SEEN, memory=KernelMemory(mode="default")), "has memory policy default instead of preferred_many"),
        (replace(SEEN, memory=KernelMemory(mode="preferred_many", nodes=(1,))), "has memory policy preferred_many 1"),
        (replace(SEEN, gpu="0000:ff:00.0"), "computes on GPU 0000:ff:00.0 instead of"),
        (replace(SEEN, environment={**ENVIRONMENT, "UCX_NET_DEVICES": "mlx5_9:1"}), "has UCX_NET_DEVICES mlx5_9:1"),
        (replace(SEEN, environment={**ENVIRONMENT, "NCCL_IB_HCA": "mlx5_0"}), "has NCCL_IB_HCA mlx5_0 instead of ="),
        (replace(SEEN, environment={}), "has "),
        (replace(SEEN, digest=""), "follows plan none instead of d1"),
    ],
    ids=[
        "fewer-cpus",
        "shifted-mask",
        "no-policy",
        "wrong-memory-node",
        "wrong-gpu",
        "wrong-nic",
        "prefix-list",
        "no-variables",
        "no-plan",
    ],
)
def test_what_differs_makes_it_red(seen: Observation, difference: str) -> None:
    found = certificate(seen)
    assert found.is_red
    assert all(one.startswith(difference) for one in found.differences)
    assert "RED" in table([found])[0]


def test_one_that_moved_later_is_red_and_says_when() -> None:
    found = certify(2, PLANNED, [replace(SEEN, moment=Moment.start), replace(SEEN, cpus=(0,))], digest=DIGEST)
    assert [one.endswith("found with its model built") for one in found.differences] == [True]


def test_what_the_kernel_does_not_tell_is_not_held_against_it() -> None:
    assert not certificate(replace(SEEN, memory=None, gpu=None, page_bytes=None)).is_red


def test_a_refused_policy_is_a_fallback_not_a_lie() -> None:
    seen = replace(SEEN, applied=refused("memory", "preferred_many 2", "preferred 2"), memory=None)
    found = certificate(seen)
    assert (found.is_red, found.flags) == (False, (BindingFlag.fallback,))
    assert found.denied == ("preferred_many 2 was refused (EPERM)", "preferred 2 was refused (EPERM)")


def test_an_old_kernel_that_prefers_the_home_alone_is_exact() -> None:
    home = KernelMemory(mode="preferred", nodes=NODES[:1])
    found = certificate(replace(SEEN, applied=refused("memory", "preferred_many 2", memory=home), memory=home))
    assert (found.is_red, found.flags, found.denied) == (False, (BindingFlag.exact,), ())


def test_hard_binding_that_became_a_preference_is_a_fallback() -> None:
    planned = replace(PLANNED, memory=MemoryPolicy(mode=MemoryMode.bind, nodes=NODES[:1]))
    many = KernelMemory(mode="preferred_many", nodes=NODES[:1])
    found = certificate(replace(SEEN, applied=refused("memory", "bind 2", memory=many), memory=many), planned)
    assert (found.is_red, found.flags) == (False, (BindingFlag.fallback,))


def test_a_policy_other_than_the_one_granted_instead_is_red() -> None:
    seen = replace(
        SEEN, applied=refused("memory", "preferred_many 2", memory=KernelMemory(mode="preferred", nodes=(2,)))
    )
    assert certificate(replace(seen, memory=KernelMemory(mode="bind", nodes=(0,)))).is_red


def test_a_refused_affinity_is_unbound_and_said() -> None:
    seen = replace(SEEN, cpus=(0, 1), memory=KernelMemory(mode="default"), applied=refused("cpus", "CPUs 4 5"))
    found = certificate(seen)
    assert (found.is_red, found.flags) == (False, (BindingFlag.unbound,))
    assert found.denied == ("CPUs 4 5 was refused (EPERM)",)


def test_without_binding_only_the_gpu_is_compared() -> None:
    planned = bind(snapshot_of("dgxh100-12nic"), local_ranks(8), BindingPolicy(cpus=CpuPolicy.none))[2]
    seen = replace(SEEN, cpus=(0,), memory=KernelMemory(mode="default"), applied=None)
    assert certificate(seen, planned).flags == (BindingFlag.unbound,)
    assert not certificate(seen, planned).is_red
    assert certificate(replace(seen, gpu="0000:ff:00.0"), planned).is_red


def test_a_rank_without_a_plan_is_unbound() -> None:
    found = certify(2, None, [replace(SEEN, digest="", applied=None)], digest="")
    assert (found.is_red, found.flags) == (False, (BindingFlag.unbound,))


def test_a_rank_that_declined_is_degraded_and_unbound() -> None:
    found = certify(2, PLANNED, [replace(SEEN, digest="")], digest=DIGEST, declined="rank 2 was given CPUs 9")
    assert (found.is_red, found.flags) == (False, (BindingFlag.degraded, BindingFlag.unbound))
    assert "rank 2 was given CPUs 9" in found.warnings


def test_a_rank_that_never_reported_is_degraded() -> None:
    found = certify(2, PLANNED, [], digest=DIGEST)
    assert (found.is_red, found.flags) == (False, (BindingFlag.degraded,))
    assert "never reported" in found.warnings[-1]
    assert "CPUs ?" in table([found])[0]


def test_flags_of_a_node_are_those_of_all_its_ranks() -> None:
    assert node_flags([certificate(SEEN), certify(3, None, [], digest="")]) == ["DEGRADED", "EXACT", "UNBOUND"]


def test_a_line_says_where_a_rank_is() -> None:
    (line,) = table([certificate(SEEN)])
    for part in (
        "rank 2",
        f"node {PLANNED.home}",
        "pages N2=3.00 GiB",
        f"GPU {PLANNED.gpu}",
        f"NIC {PLANNED.nics[0]}",
        "EXACT",
    ):
        assert part in line
