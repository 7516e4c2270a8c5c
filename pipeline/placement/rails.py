"""Which compute NICs each GPU uses: the nearest, and among equally near ones as evenly as can be (rule R10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pipeline.hardware.topology import Distance, Nic, NodeSnapshot, device_order
from pipeline.placement.homes import find_home
from pipeline.placement.matching import balanced_matching
from pipeline.placement.nics import nic_order


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuNics:
    """The NICs of one GPU."""

    names: tuple[str, ...]
    """The first is the one for libraries that take only one; empty: none."""
    distance: Distance | None = None
    """How far they are; None without a NIC."""
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """GPUs to which the same NICs are nearest, equally far."""

    near: tuple[Distance, int]
    """PCI distance, then that of the NUMA nodes."""
    nics: tuple[Nic, ...]
    """In bus order."""
    gpus: tuple[str, ...]
    """Bus ids, in order."""

    @property
    def cards(self) -> tuple[str, ...]:
        """Physical cards: load is counted by them, virtual functions share one."""
        return tuple(dict.fromkeys(map(_card, self.nics)))


def choose_nics(snapshot: NodeSnapshot, compute: Sequence[Nic], used: Collection[str]) -> dict[str, GpuNics]:
    """The NICs of each GPU in `used` (bus ids), chosen in one go for all of them.

    A GPU only gets NICs of its own nearest kind; how many depends on how many GPUs of the machine share them.
    """
    if not compute:
        return {gpu: GpuNics(names=()) for gpu in used}
    groups = _group(snapshot, compute)
    alone = [group for group in groups if _is_alone(group, groups)]
    limit = _cards_each(alone)
    cards = {gpu: card for group in alone for gpu, card in _slices(group, limit, used).items()}
    cards |= _matched([group for group in groups if group not in alone], used)
    return _name(groups, cards, limit if alone else 1)


def _group(snapshot: NodeSnapshot, compute: Sequence[Nic]) -> list[_Group]:
    """Nearest groups first, GPUs in bus order."""
    members: dict[tuple[tuple[Distance, int], tuple[Nic, ...]], list[str]] = {}
    for gpu in sorted(snapshot.gpus, key=lambda gpu: device_order(gpu.bdf)):
        home = find_home(snapshot, gpu).node
        here = -1 if home is None else home
        distances = {
            nic: (snapshot.device_distance(gpu, nic), snapshot.node_distance(here, nic.numa_node)) for nic in compute
        }
        near = min(distances.values())
        nics = tuple(nic for nic in sorted(compute, key=nic_order) if distances[nic] == near)
        members.setdefault((near, nics), []).append(gpu.bdf)
    return sorted((_Group(*key, tuple(gpus)) for key, gpus in members.items()), key=lambda group: group.near)


def _card(nic: Nic) -> str:
    return nic.physfn or nic.bdf or nic.name


def _is_alone(group: _Group, groups: Iterable[_Group]) -> bool:
    return all(other is group or set(other.cards).isdisjoint(group.cards) for other in groups)


def _cards_each(alone: Iterable[_Group]) -> int:
    """Cards one GPU may take: its part of those near; where GPUs would fare differently, the part of the poorest."""
    ratios = {len(group.cards) / len(group.gpus) for group in alone}
    return ceil(ratios.pop()) if len(ratios) == 1 else max(1, int(min(ratios, default=1)))


def _slices(group: _Group, limit: int, used: Collection[str]) -> dict[str, list[str]]:
    """GPU i of G takes the cards from i*N/G on."""
    gpus = [gpu for gpu in group.gpus if gpu in used]
    starts = [i * len(group.cards) // max(1, len(gpus)) for i in range(len(gpus) + 1)]
    return {gpu: list(group.cards[starts[i] : max(starts[i] + 1, starts[i + 1])][:limit]) for i, gpu in enumerate(gpus)}


def _matched(contended: Sequence[_Group], used: Collection[str]) -> dict[str, list[str]]:
    """One card for each GPU of groups that overlap, in order within a group."""
    order = sorted((gpu for group in contended for gpu in group.gpus), key=device_order)
    matched = balanced_matching(
        {gpu: _choices(group, order.index(gpu), len(order)) for group in contended for gpu in group.gpus if gpu in used}
    )
    cards: dict[str, list[str]] = {}
    for group in contended:
        gpus = [gpu for gpu in group.gpus if gpu in matched]
        in_order = sorted((matched[gpu] for gpu in gpus), key=group.cards.index)
        cards.update({gpu: [card] for gpu, card in zip(gpus, in_order, strict=True)})
    return cards


def _choices(group: _Group, index: int, count: int) -> list[str]:
    """The group's cards; where nothing but the order tells them apart, GPU i of G likes card i*N/G best."""
    start = index * len(group.cards) // count if group.near[0] in (Distance.PHB, Distance.SYS) else 0
    return [*group.cards[start:], *group.cards[:start]]


def _name(groups: Sequence[_Group], cards: Mapping[str, Sequence[str]], limit: int) -> dict[str, GpuNics]:
    """One NIC of each card, virtual functions that nobody has taken yet first."""
    group_of = {gpu: group for group in groups for gpu in group.gpus}
    loads: Counter[str] = Counter()
    found: dict[str, GpuNics] = {}
    for gpu in sorted(cards, key=device_order):
        group = group_of[gpu]
        by_card = [[nic.name for nic in group.nics if _card(nic) == card] for card in cards[gpu]]
        names = tuple(min(functions, key=loads.__getitem__) for functions in by_card)
        loads.update(names)
        found[gpu] = GpuNics(names=names, distance=group.near[0], warning=_warn(group, groups, limit))
    return found


def _warn(group: _Group, groups: Sequence[_Group], limit: int) -> str | None:
    if len(group.cards) <= limit * len(group.gpus) or not _is_alone(group, groups):
        return None
    return (
        f"{len(group.cards)} NICs are {group.near[0].name} to {len(group.gpus)} GPUs, others have fewer: each gets "
        f"{limit}; name those that are no compute NICs in the profile"
    )
