"""Binding where something is missing, shared, too small, or asked for: what is done and what is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from unit.placement.recorded import local_ranks, snapshot_of

from pipeline.hardware.topology import Gpu, Nic, NodeSnapshot, NumaNode, TaskMask, TopologyError, format_ids, parse_ids
from pipeline.placement.binding import Binding, bind, spare_cpus
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank
from pipeline.rundir import from_jsonable, to_jsonable

GIB = 2**30


def node(
    *,
    gpus: Sequence[int] = (0, 0, 1, 1),
    allowed: str = "0-15",
    mems: tuple[int, ...] = (0, 1),
    free_bytes: int | None = None,
) -> NodeSnapshot:
    """Two sockets of eight cores; one GPU for each of the named nodes."""
    names = tuple(f"GPU{i}" for i in range(len(gpus)))
    return NodeSnapshot(
        nodes=tuple(
            NumaNode(
                id=i, cpus=tuple(range(8 * i, 8 * i + 8)), memory_total_bytes=64 * GIB, memory_free_bytes=free_bytes
            )
            for i in range(2)
        ),
        cores=tuple((cpu,) for cpu in range(16)),
        packages=(parse_ids("0-7"), parse_ids("8-15")),
        gpus=tuple(Gpu(bdf=name, numa_node=home) for name, home in zip(names, gpus, strict=True)),
        allowed=parse_ids(allowed),
        mems=mems,
        job_gpus=names,
    )


def shown(bindings: Sequence[Binding]) -> list[str]:
    """`GPU cpus flags` of each rank, EXACT not mentioned."""
    return [
        " ".join([b.gpu or "-", format_ids(b.cpus), *(f.value for f in b.flags if f.value != "EXACT")])
        for b in bindings
    ]


@pytest.mark.parametrize(
    ("ranks", "snapshot", "expected"),
    [
        (2, node(), ["GPU0 0-3", "GPU1 4-7"]),
        (1, node(), ["GPU0 0-7"]),
        (3, node(gpus=(0, 1)), ["GPU0 0-3", "GPU1 8-15", "GPU0 4-7"]),
        (4, node(gpus=(0, 0, 0, 1)), ["GPU0 0-2", "GPU1 3-5", "GPU2 6-7", "GPU3 8-15"]),
        (4, node(gpus=(-1, -1, -1, -1)), [f"GPU{i} {4 * i}-{4 * i + 3} DEGRADED" for i in range(4)]),
        (2, node(gpus=(0, -1)), ["GPU0 0-7", "GPU1 8-15 DEGRADED"]),
        (4, node(allowed="0-7"), ["GPU0 0-1", "GPU1 2-3", "GPU2 4-5 FALLBACK", "GPU3 6-7 FALLBACK"]),
        (
            4,
            node(allowed="3,8-15"),
            ["GPU0 3 OVERSUBSCRIBED", "GPU1 3 OVERSUBSCRIBED", "GPU2 8-11", "GPU3 12-15"],
        ),
        (2, replace(node(), job_gpus=("GPU3", "GPU1")), ["GPU1 0-7", "GPU3 8-15"]),
        (2, replace(node(), job_gpus=None), ["- 0-7 DEGRADED", "- 8-15 DEGRADED"]),
        (2, replace(node(), job_gpus=()), ["- 0-7", "- 8-15"]),
    ],
    ids=[
        "fewer ranks than GPUs",
        "one rank",
        "more ranks than GPUs",
        "uneven GPUs",
        "home unknown",
        "one home unknown",
        "half of the node",
        "fewer cores than ranks",
        "some GPUs of the node",
        "GPUs could not be learnt",
        "no GPUs asked for",
    ],
)
def test_who_gets_what(ranks: int, snapshot: NodeSnapshot, expected: list[str]) -> None:
    assert shown(bind(snapshot, local_ranks(ranks))) == expected


def test_masks_of_a_scheduler_that_binds_cyclically_are_obeyed() -> None:
    """Rank 1 sits on the wrong socket: that can't be mended from inside, only said."""
    masks = tuple(TaskMask(local_rank=i, cpus=cpus) for i, cpus in enumerate([(0, 1), (8, 9), (2, 3), (10, 11)]))
    assert shown(bind(replace(node(), tasks=masks), local_ranks(4))) == [
        "GPU0 0-1",
        "GPU1 8-9 FALLBACK",
        "GPU2 2-3 FALLBACK",
        "GPU3 10-11",
    ]


def test_one_thread_of_a_core_each_is_kept() -> None:
    snapshot = replace(node(gpus=(0, 0)), cores=tuple((i, i + 8) for i in range(8)), packages=())
    masks = (TaskMask(local_rank=0, cpus=(0,)), TaskMask(local_rank=1, cpus=(8,)))
    assert [b.cpus for b in bind(replace(snapshot, tasks=masks), local_ranks(2))] == [(0,), (8,)]


@pytest.mark.parametrize(
    ("allowed", "ranks", "warning"),
    [
        ("3,8-15", 4, "2 ranks share CPUs 3: ask for more (--cpus-per-task; srun --exact)"),
        ("0-15", 8, "only 2 cores; fewer than 4 starve data loading: ask for more (--cpus-per-task; srun --exact)"),
        ("8-15", 4, "no CPU of its home (0-7) is allowed: uses all allowed CPUs"),
    ],
)
def test_what_is_wrong_is_said(allowed: str, ranks: int, warning: str) -> None:
    assert warning in bind(node(allowed=allowed), local_ranks(ranks))[0].warnings


def test_shared_node_leaves_other_jobs_their_part() -> None:
    snapshot = replace(node(), job_gpus=("GPU1", "GPU3"))
    shared = BindingPolicy(node_is_shared=True)
    assert shown(bind(snapshot, local_ranks(2), shared)) == ["GPU1 0-3", "GPU3 8-11"]
    limited = replace(snapshot, allowed=parse_ids("4-7,12-15"))
    assert shown(bind(limited, local_ranks(2), shared)) == ["GPU1 4-7", "GPU3 12-15"]


def test_shared_node_leaves_other_jobs_their_nics() -> None:
    far = replace(node(allowed="0-3"), nics=(Nic(name="a"), Nic(name="b")), job_gpus=("GPU2", "GPU3"))
    for is_shared, nics in ((True, ["b", "b"]), (False, ["a", "b"])):
        bindings = bind(far, local_ranks(2), BindingPolicy(node_is_shared=is_shared))
        assert [b.nics[0] for b in bindings] == nics


def test_no_binding_keeps_all_cpus_but_says_who_uses_which_gpu() -> None:
    bindings = bind(node(), local_ranks(4), BindingPolicy(cpus=CpuPolicy.none))
    assert shown(bindings) == [f"GPU{i} 0-15 UNBOUND" for i in range(4)]
    assert {(b.cores, b.memory.mode.value) for b in bindings} == {(4, "none")}


def memory(binding: Binding) -> str:
    return " ".join((binding.memory.mode.value, *map(str, binding.memory.nodes)))


@pytest.mark.parametrize(
    ("snapshot", "need_gib", "expected"),
    [
        (node(), None, "preferred 0"),
        (node(free_bytes=40 * GIB), 20, "bind 0"),
        (node(free_bytes=40 * GIB), 21, "preferred 0 FALLBACK"),
        (node(), 1, "preferred 0 FALLBACK"),
        (node(mems=(1,)), None, "none FALLBACK"),
        (node(mems=(1,), free_bytes=40 * GIB), 1, "none FALLBACK"),
        (node(gpus=(-1,) * 4), None, "none DEGRADED"),
    ],
    ids=["default", "bound", "too little", "not known", "not allowed", "bound, not allowed", "home unknown"],
)
def test_memory(snapshot: NodeSnapshot, need_gib: int | None, expected: str) -> None:
    policy = BindingPolicy(memory_bytes_per_rank=None if need_gib is None else need_gib * GIB)
    binding = bind(snapshot, local_ranks(4), policy)[0]
    assert " ".join([memory(binding), *(f.value for f in binding.flags if f.value != "EXACT")]) == expected


def test_memory_of_the_socket_where_the_home_has_none() -> None:
    snapshot = snapshot_of("b200x8-6numa")
    bare = replace(snapshot, mems=(1, 3, 4, 5))
    assert [memory(b) for b in bind(bare, local_ranks(8))][::4] == ["preferred 1", "preferred 3 4 5"]


def test_spread_prefers_the_memory_of_the_added_nodes() -> None:
    bindings = bind(snapshot_of("b200x8-6numa"), local_ranks(8), BindingPolicy(cpus=CpuPolicy.spread))
    assert [memory(b) for b in bindings][::2] == ["preferred 0 1", "preferred 2 1", "preferred 3 4", "preferred 5 4"]


def test_spread_on_a_shared_node_leaves_a_part_of_spare_nodes_too() -> None:
    snapshot = replace(snapshot_of("b200x8-6numa"), job_gpus=("GPU0", "GPU4"))
    bindings = bind(snapshot, local_ranks(2), BindingPolicy(cpus=CpuPolicy.spread, node_is_shared=True))
    assert [b.cores for b in bindings] == [16 + 8, 16 + 8]


def test_rank_whose_home_is_not_allowed_stays_in_its_socket() -> None:
    snapshot = replace(snapshot_of("b200x8-6numa"), allowed=parse_ids("32-63,96-191"))
    assert shown(bind(snapshot, local_ranks(2))) == ["GPU0 32-47 FALLBACK", "GPU1 48-63 FALLBACK"]


def test_spread_gives_no_core_twice() -> None:
    snapshot = replace(snapshot_of("b200x8-6numa"), allowed=parse_ids("32-95"))
    spread = BindingPolicy(cpus=CpuPolicy.spread)
    assert shown(bind(snapshot, local_ranks(4), spread)) == [
        "GPU0 32-47 FALLBACK",
        "GPU1 48-63 FALLBACK",
        "GPU2 64-79",
        "GPU3 80-95",
    ]


def test_spread_adds_a_spare_node_to_the_nearest_home() -> None:
    snapshot = snapshot_of("b200x8-6numa")
    nearer_to_2 = [(10, 13, 12, 21, 21, 21), (13, 10, 11, 21, 21, 21), *(one.distances for one in snapshot.nodes[2:])]
    nodes = tuple(replace(one, distances=far) for one, far in zip(snapshot.nodes, nearer_to_2, strict=True))
    bindings = bind(replace(snapshot, nodes=nodes), local_ranks(8), BindingPolicy(cpus=CpuPolicy.spread))
    assert [b.cores for b in bindings] == [16, 16, 32, 32, 24, 24, 24, 24]


def test_gpus_are_counted_not_spelled() -> None:
    assert [b.gpu for b in bind(node(gpus=(0,) * 11), local_ranks(11))][1:3] == ["GPU1", "GPU2"]


def test_spread_without_knowledge_of_sockets_says_so() -> None:
    blind = replace(snapshot_of("b200x8-6numa"), packages=())
    strict, spread = (bind(blind, local_ranks(8), BindingPolicy(cpus=p)) for p in (CpuPolicy.strict, CpuPolicy.spread))
    assert [b.cpus for b in spread] == [b.cpus for b in strict]
    assert "which nodes share a socket is not known" in spread[0].warnings[0]


def test_spare_cpus_are_for_loaders_and_supervisors() -> None:
    snapshot = snapshot_of("h200x8-isolated-core")
    assert spare_cpus(snapshot, bind(snapshot, local_ranks(8))) == (97,)


def test_whole_caches_where_they_divide() -> None:
    snapshot = replace(node(gpus=(0, 0)), l3_groups=((0, 1, 2, 4), (3, 5, 6, 7)))
    assert shown(bind(snapshot, local_ranks(2))) == ["GPU0 0-2,4", "GPU1 3,5-7"]


@pytest.mark.parametrize("policy", CpuPolicy)
def test_no_ranks_no_bindings(policy: CpuPolicy) -> None:
    assert bind(node(), [], BindingPolicy(cpus=policy)) == ()


def test_binding_survives_as_json() -> None:
    binding = bind(snapshot_of("h20x8-virtual-functions"), local_ranks(8))[3]
    assert from_jsonable(json.loads(json.dumps(to_jsonable(binding))), Binding) == binding


def test_doubled_local_rank_is_refused() -> None:
    with pytest.raises(TopologyError, match="each may appear once"):
        bind(node(), [LocalRank(local_rank=0, rank=0), LocalRank(local_rank=0, rank=1)])


def test_task_without_an_online_cpu_is_refused() -> None:
    snapshot = replace(node(), tasks=(TaskMask(local_rank=1, cpus=(99,)),))
    with pytest.raises(TopologyError, match="local rank 1 is allowed no CPU"):
        bind(snapshot, local_ranks(2))


def test_reasons_name_what_was_decided_and_why() -> None:
    binding = bind(snapshot_of("dgxh100-12nic"), local_ranks(8))[5]
    assert [(reason.what, reason.value, reason.why) for reason in binding.reasons] == [
        ("gpu", "GPU5", "GPU 5 of the job's 8 by bus id"),
        ("home", "1", "numa_node of GPU5 is 1"),
        ("cpus", "70-83,182-195", "strict: its part of node 1"),
        ("memory", "preferred 1", "home node 1 first; spills before it fails"),
        ("nics", "NIC9", "PXB to the GPU"),
    ]
