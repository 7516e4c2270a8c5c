"""What a picture of a node shows, before it is drawn: domains with their cores, GPUs and NICs, and who sits where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.hardware.topology import Gpu, LinkLayer, Nic, NodeSnapshot, NumaNode, device_order, format_ids
from pipeline.placement.binding import Binding
from pipeline.placement.homes import find_home
from pipeline.placement.nics import active_rate, nic_order

_GIB = 1 << 30
_LAYERS = {LinkLayer.infiniband: "IB", LinkLayer.ethernet: "RoCE", LinkLayer.unspecified: "own"}


class CoreState(Enum):
    """Whose a physical core is."""

    given = "given"
    """To one rank."""
    shared = "shared"
    """By several ranks."""
    spare = "spare"
    """Allowed, nobody's."""
    forbidden = "forbidden"
    """Not this job's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """One physical core."""

    cpus: tuple[int, ...]
    state: CoreState
    rank: int | None
    """The first of those that have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NicTag:
    """A NIC under the GPU that uses it."""

    name: str
    distance: str
    """PIX and the like; where it belongs to another NUMA node, that too."""
    link: str
    """`400 Gb/s IB`; empty: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A GPU with its ranks, or a rank without one."""

    title: str
    """`GPU 3`, in bus order, or `no GPU`."""
    place: str
    """Its bus id; empty without a GPU, or where it is not known."""
    ranks: tuple[int, ...]
    """Empty: nobody's."""
    cores: int
    """Physical cores of its first rank; 0 without one."""
    cpus: tuple[str, ...]
    """CPUs of each of its ranks."""
    nics: tuple[NicTag, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """One NUMA node with CPUs and what is near it; or what belongs to none that is known."""

    title: str
    detail: str
    socket: int | None
    """None: there is one only, or it is not known."""
    cores: tuple[Core, ...]
    seats: tuple[Seat, ...]
    other_nics: tuple[str, ...]
    """NICs here that no GPU was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A node."""

    title: str
    detail: str
    rows: tuple[tuple[Domain, ...], ...]
    """Sockets where they hold several domains each, else all in one row."""
    notes: tuple[str, ...]


def scene_of(snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> Scene:
    """The node of a snapshot with the ranks of these bindings, none for a bare node."""
    view = _View(snapshot, bindings)
    domains = [_domain(view, node) for node in snapshot.cpu_nodes()]
    homeless = _homeless(view)
    return Scene(
        title=_title(snapshot),
        detail=_detail(snapshot),
        rows=(*_rows(snapshot, domains), *(((homeless,),) if homeless else ())),
        notes=tuple(_notes(snapshot, bindings, stray=() if homeless else view.others(None))),
    )


class _View:
    """The snapshot and the bindings, looked up by what is drawn."""

    def __init__(self, snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> None:
        self.snapshot = snapshot
        self.bindings = bindings
        self.gpus = sorted(snapshot.gpus, key=lambda gpu: device_order(gpu.bdf))
        self.allowed = set(snapshot.allowed)
        self.nodes = {node.id for node in snapshot.cpu_nodes()}
        self.node_of = {cpu: node.id for node in snapshot.cpu_nodes() for cpu in node.cpus}
        self.users: dict[int, list[int]] = {}
        for binding in bindings:
            for cpu in binding.cpus:
                self.users.setdefault(cpu, []).append(binding.rank)
        self.taken_nics = {name for binding in bindings for name in binding.nics}

    def core(self, cpus: tuple[int, ...]) -> Core:
        ranks = sorted({rank for cpu in cpus for rank in self.users.get(cpu, ())})
        if len(ranks) > 1:
            state = CoreState.shared
        elif ranks:
            state = CoreState.given
        else:
            state = CoreState.spare if self.allowed & set(cpus) else CoreState.forbidden
        return Core(cpus=cpus, state=state, rank=ranks[0] if ranks else None)

    def home(self, gpu: Gpu) -> int | None:
        return find_home(self.snapshot, gpu).node

    def seat(self, gpu: Gpu) -> Seat:
        bound = [binding for binding in self.bindings if binding.gpu == gpu.bdf]
        names = dict.fromkeys(name for binding in bound for name in binding.nics)
        return Seat(
            title=f"GPU {self.gpus.index(gpu)}",
            place=_bus_id(gpu),
            ranks=tuple(binding.rank for binding in bound),
            cores=bound[0].cores if bound else 0,
            cpus=tuple(format_ids(binding.cpus) for binding in bound),
            nics=tuple(self._nic_tag(gpu, nic) for nic in self.snapshot.nics if nic.name in names),
        )

    def _nic_tag(self, gpu: Gpu, nic: Nic) -> NicTag:
        distance = self.snapshot.device_distance(gpu, nic).name
        elsewhere = nic.numa_node in self.nodes and nic.numa_node != self.home(gpu)
        return NicTag(
            name=nic.name, distance=f"{distance}, NUMA {nic.numa_node}" if elsewhere else distance, link=_link(nic)
        )

    def others(self, node: int | None) -> tuple[str, ...]:
        """NICs of a node (None: of none that is known) that nobody was given, in bus order."""
        nics = sorted(self.snapshot.nics, key=nic_order)
        return tuple(nic.name for nic in nics if nic.name not in self.taken_nics and self._nic_node(nic) == node)

    def _nic_node(self, nic: Nic) -> int | None:
        if len(self.nodes) == 1:
            return next(iter(self.nodes))
        return nic.numa_node if nic.numa_node in self.nodes else None

    def alone(self) -> list[tuple[int | None, Seat]]:
        """Ranks without a GPU, by the node of their first CPU."""
        return [
            (
                self.node_of.get(binding.cpus[0]),
                Seat(
                    title="no GPU",
                    place="",
                    ranks=(binding.rank,),
                    cores=binding.cores,
                    cpus=(format_ids(binding.cpus),),
                    nics=(),
                ),
            )
            for binding in self.bindings
            if binding.gpu is None
        ]

    def seats(self, node: int | None) -> tuple[Seat, ...]:
        """All seats of a node, GPUs first."""
        at_gpus = [self.seat(gpu) for gpu in self.gpus if self.home(gpu) == node]
        return (*at_gpus, *(seat for where, seat in self.alone() if where == node))


def _domain(view: _View, node: NumaNode) -> Domain:
    cores = [core for core in view.snapshot.cores if core[0] in node.cpus]
    memory = "" if node.memory_total_bytes is None else f", {node.memory_total_bytes / _GIB:.0f} GiB"
    return Domain(
        title=f"NUMA {node.id}",
        detail=f"{_plural(len(cores), 'core')}{memory}, CPUs {format_ids(node.cpus)}",
        socket=_socket(view.snapshot, node),
        cores=tuple(view.core(core) for core in cores),
        seats=view.seats(node.id),
        other_nics=view.others(node.id),
    )


def _homeless(view: _View) -> Domain | None:
    """What has no NUMA node that is known: cores of a machine without nodes, GPUs, NICs."""
    cores = [core for core in view.snapshot.cores if core[0] not in view.node_of]
    seats, nics = view.seats(None), view.others(None)
    if not (cores or seats):
        return None
    cpus = format_ids(cpu for core in cores for cpu in core)
    return Domain(
        title="NUMA node not known",
        detail=f"{_plural(len(cores), 'core')}, CPUs {cpus}" if cores else "",
        socket=None,
        cores=tuple(view.core(core) for core in cores),
        seats=seats,
        other_nics=nics,
    )


def _socket(snapshot: NodeSnapshot, node: NumaNode) -> int | None:
    packages = snapshot.packages
    if len(packages) < 2:
        return None
    return next((i for i, cpus in enumerate(packages) if set(cpus) & set(node.cpus)), None)


_LONGEST_ROW = 4


def _rows(snapshot: NodeSnapshot, domains: Sequence[Domain]) -> tuple[tuple[Domain, ...], ...]:
    """A socket a row where each holds as many domains; else rows as even as can be."""
    count, sockets = len(domains), len(snapshot.packages)
    if 1 < sockets < count and count % sockets == 0 and count // sockets <= _LONGEST_ROW:
        per = count // sockets
    else:
        rows = -(-count // _LONGEST_ROW)
        per = -(-count // rows) if rows else 1
    return tuple(tuple(domains[i : i + per]) for i in range(0, count, per))


def _title(snapshot: NodeSnapshot) -> str:
    names = sorted({gpu.name for gpu in snapshot.gpus if gpu.name})
    if not snapshot.gpus:
        return "GPUs not known" if "gpus" in snapshot.untold else "no GPU"
    return f"{len(snapshot.gpus)} x {' / '.join(names) or 'GPU'}"


def _detail(snapshot: NodeSnapshot) -> str:
    parts = [
        _plural(len(snapshot.packages), "socket") if snapshot.packages else "",
        f"{_plural(len(snapshot.cpu_nodes()), 'NUMA node')} with CPUs" if snapshot.cpu_nodes() else "NUMA not known",
        f"{_plural(len(snapshot.cores), 'core')} of {_plural(max(map(len, snapshot.cores)), 'thread')}",
        _plural(len(snapshot.nics), "RDMA device") if "nics" not in snapshot.untold else "",
        f"driver {snapshot.driver}" if snapshot.driver else "",
    ]
    return ", ".join(filter(None, parts))


def _plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _notes(snapshot: NodeSnapshot, bindings: Sequence[Binding], *, stray: Sequence[str]) -> list[str]:
    """`stray` are NICs that nobody was given, of no NUMA node that is known."""
    bare = [node.id for node in snapshot.nodes if not node.cpus]
    flags = dict.fromkeys(flag.value for binding in bindings for flag in binding.flags)
    notes = [f"NUMA nodes without CPUs: {format_ids(bare)}"] if bare else []
    if stray:
        notes.append(f"other NICs, of no known NUMA node: {' '.join(stray)}")
    if "cpus" in snapshot.untold:
        notes.append("the source doesn't show all CPUs")
    if flags:
        notes.append(f"binding: {', '.join(flags)}")
    return notes


def _bus_id(gpu: Gpu) -> str:
    """Tables know GPUs by number only."""
    return gpu.bdf if ":" in gpu.bdf else ""


def _link(nic: Nic) -> str:
    rate = active_rate(nic)
    layers = [_LAYERS[port.link_layer] for port in nic.ports or () if port.active]
    return " ".join(filter(None, ("" if rate is None else f"{rate:g} Gb/s", layers[0] if layers else "")))


def rank_numbers(bindings: Sequence[Binding]) -> Mapping[int, int]:
    """The place of each rank among those of the node, for its colour."""
    return {rank: place for place, rank in enumerate(sorted(binding.rank for binding in bindings))}
