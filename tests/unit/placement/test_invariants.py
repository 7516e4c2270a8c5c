"""What has to hold for every binding of every node, generated and recorded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.placement.machines import local_ranks, snapshots, with_masks
from unit.placement.recorded import NODES, snapshot_of
from unit.placement.recorded import local_ranks as ranks_of

from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.binding import Binding, BindingFlag, bind, spare_cpus
from pipeline.placement.homes import find_home
from pipeline.placement.memory import MemoryMode
from pipeline.placement.nics import classify_nics
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

policies = st.builds(
    BindingPolicy,
    cpus=st.sampled_from(CpuPolicy),
    memory_bytes_per_rank=st.sampled_from([None, None, 2**20, 2**40]),
    node_is_shared=st.booleans(),
)


def allowed_of(snapshot: NodeSnapshot, binding: Binding) -> set[int]:
    masks = {task.local_rank: task.cpus for task in snapshot.tasks}
    return set(masks.get(binding.local_rank, snapshot.allowed))


def check(snapshot: NodeSnapshot, ranks: Sequence[LocalRank], policy: BindingPolicy) -> tuple[Binding, ...]:
    """Binds and checks everything that holds whatever the policy."""
    bindings = bind(snapshot, ranks, policy)
    assert [b.local_rank for b in bindings] == sorted(rank.local_rank for rank in ranks)
    users = Counter(cpu for b in bindings for cpu in b.cpus)
    for binding in bindings:
        check_cpus(snapshot, binding, users)
        check_memory(snapshot, binding)
        others = set(binding.flags) - {BindingFlag.exact}
        assert bool(others) != (BindingFlag.exact in binding.flags)
        assert (BindingFlag.unbound in binding.flags) == (policy.cpus is CpuPolicy.none)
    check_nics(snapshot, bindings, alone=not policy.node_is_shared)
    return bindings


def check_cpus(snapshot: NodeSnapshot, binding: Binding, users: Counter[int]) -> None:
    allowed = allowed_of(snapshot, binding)
    mine = set(binding.cpus)
    assert mine
    assert mine <= allowed & set(snapshot.online)
    assert binding.cores >= 1
    if BindingFlag.unbound in binding.flags:
        return
    shares = any(users[cpu] > 1 for cpu in mine)
    assert shares == (BindingFlag.oversubscribed in binding.flags)
    if not snapshot.tasks:
        for core in snapshot.cores:
            assert mine & set(core) in (set(), allowed & set(core)), "siblings were torn apart"


def check_memory(snapshot: NodeSnapshot, binding: Binding) -> None:
    for node_id in binding.memory.nodes:
        node = snapshot.node(node_id)
        assert node is not None
        assert node.cpus
        assert node.memory_total_bytes != 0
        assert node_id in snapshot.mems
    assert (binding.memory.mode is MemoryMode.none) == (not binding.memory.nodes)


def check_nics(snapshot: NodeSnapshot, bindings: Sequence[Binding], *, alone: bool) -> None:
    compute = classify_nics(snapshot).compute
    gpus = {gpu.bdf: gpu for gpu in snapshot.gpus}
    main = {b.gpu: b.nics[0] for b in bindings if b.nics}
    card_of = {nic.name: nic.physfn or nic.bdf or nic.name for nic in compute}
    loads = Counter(card_of[name] for name in main.values())
    for binding in bindings:
        assert binding.compute_nics == tuple(nic.name for nic in compute)
        assert set(binding.nics) <= set(binding.compute_nics)
        assert bool(binding.nics) == (binding.gpu is not None and bool(compute))
    for gpu, name in main.items():
        home = find_home(snapshot, gpus[gpu or ""]).node
        far = {
            nic.name: (
                snapshot.device_distance(gpus[gpu or ""], nic),
                snapshot.node_distance(-1 if home is None else home, nic.numa_node),
            )
            for nic in compute
        }
        assert far[name] == min(far.values()), "a nearer NIC was passed over"
        for other in compute:
            if alone and far[other.name] == far[name]:
                assert loads[card_of[name]] - loads[card_of[other.name]] <= 1, "an equally near NIC idles"


@unhurried
@given(data=st.data(), snapshot=snapshots(), policy=policies)
def test_generated_nodes(data: st.DataObject, snapshot: NodeSnapshot, policy: BindingPolicy) -> None:
    check(snapshot, data.draw(local_ranks(snapshot)), policy)


@unhurried
@given(data=st.data(), snapshot=snapshots(), policy=policies)
def test_generated_nodes_with_a_mask_for_each_task(
    data: st.DataObject, snapshot: NodeSnapshot, policy: BindingPolicy
) -> None:
    ranks = data.draw(local_ranks(snapshot))
    check(data.draw(with_masks(snapshot, ranks)), ranks, policy)


@pytest.mark.parametrize("policy", CpuPolicy)
@pytest.mark.parametrize("name", NODES)
def test_recorded_nodes_with_any_number_of_ranks(name: str, policy: CpuPolicy) -> None:
    snapshot = snapshot_of(name)
    for count in (1, 2, 3, 8, 16):
        check(snapshot, ranks_of(count), BindingPolicy(cpus=policy))


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_all_cores_of_a_home_are_used_and_evenly(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    ranks = data.draw(local_ranks(snapshot))
    bindings = bind(snapshot, ranks)
    undisturbed = all(set(b.flags) <= {BindingFlag.exact, BindingFlag.oversubscribed} for b in bindings)
    for home in {b.home for b in bindings} - {None}:
        here = [b for b in bindings if b.home == home]
        node = snapshot.node(home or 0)
        assert node is not None
        wanted = set(node.cpus) & set(snapshot.allowed)
        touched = [core for core in snapshot.cores if set(core) & wanted]
        half = [core for core in touched if not set(core) <= set(snapshot.allowed)]
        if 2 * len(half) < len(touched):
            wanted -= {cpu for core in half for cpu in core}
        used = {cpu for b in bindings for cpu in b.cpus}
        assert wanted <= used
        if undisturbed and len({b.gpu for b in here}) == len(here):
            assert wanted == {cpu for b in here for cpu in b.cpus} or not snapshot.gpus
            assert max(b.cores for b in here) - min(b.cores for b in here) <= 1


@unhurried
@given(data=st.data(), snapshot=snapshots(), policy=policies)
def test_order_of_enumeration_changes_nothing(
    data: st.DataObject, snapshot: NodeSnapshot, policy: BindingPolicy
) -> None:
    ranks = data.draw(local_ranks(snapshot))
    shuffled = shuffle(snapshot, data.draw(st.randoms(use_true_random=False)))
    assert bind(shuffled, ranks[::-1], policy) == bind(snapshot, ranks, policy)


@pytest.mark.parametrize("name", NODES)
def test_order_of_enumeration_changes_nothing_on_recorded_nodes(name: str) -> None:
    snapshot, ranks = snapshot_of(name), ranks_of(8)
    for seed in range(3):
        assert bind(shuffle(snapshot, random.Random(seed)), ranks) == bind(snapshot, ranks)


def shuffle(snapshot: NodeSnapshot, source: random.Random) -> NodeSnapshot:
    def mixed(values: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(source.sample(values, len(values)))

    return replace(
        snapshot,
        gpus=mixed(snapshot.gpus),
        nics=mixed(snapshot.nics),
        links=mixed(snapshot.links),
        job_gpus=None if snapshot.job_gpus is None else mixed(snapshot.job_gpus),
    )


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_names_of_nics_change_nothing(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    ranks = data.draw(local_ranks(snapshot))
    names = data.draw(st.permutations([nic.name for nic in snapshot.nics]))
    renamed = replace(
        snapshot, nics=tuple(replace(nic, name=name) for nic, name in zip(snapshot.nics, names, strict=True))
    )
    assert buses(renamed, bind(renamed, ranks)) == buses(snapshot, bind(snapshot, ranks))


def buses(snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> list[list[str | None]]:
    bus_of = {nic.name: nic.bdf for nic in snapshot.nics}
    return [[bus_of[name] for name in binding.nics] for binding in bindings]


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_spread_adds_and_stays_in_the_socket(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    ranks = data.draw(local_ranks(snapshot))
    strict, spread = bind(snapshot, ranks), bind(snapshot, ranks, BindingPolicy(cpus=CpuPolicy.spread))
    for before, after in zip(strict, spread, strict=True):
        assert set(before.cpus) <= set(after.cpus)
        added = set(after.cpus) - set(before.cpus)
        home = snapshot.node(after.home) if after.home is not None else None
        assert not added or (home is not None and added <= set(snapshot.socket_cpus(home)))


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_equalized_ranks_get_the_same(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    ranks = data.draw(local_ranks(snapshot))
    least = min(binding.cores for binding in bind(snapshot, ranks))
    assert {b.cores for b in bind(snapshot, ranks, BindingPolicy(cpus=CpuPolicy.equalize))} == {least}


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_excluded_nics_are_never_chosen(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    out = {nic.name for nic in snapshot.nics if data.draw(st.booleans())}
    bindings = bind(snapshot, data.draw(local_ranks(snapshot)), BindingPolicy(excluded_nics=tuple(out)))
    assert all(out.isdisjoint(binding.compute_nics) for binding in bindings)


@unhurried
@given(data=st.data(), snapshot=snapshots())
def test_spare_cpus_are_the_rest(data: st.DataObject, snapshot: NodeSnapshot) -> None:
    bindings = bind(snapshot, data.draw(local_ranks(snapshot)))
    used = {cpu for binding in bindings for cpu in binding.cpus}
    assert set(spare_cpus(snapshot, bindings)) == set(snapshot.allowed) & set(snapshot.online) - used
