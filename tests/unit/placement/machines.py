"""Strategies for nodes that could exist: sockets, NUMA nodes, threads, switches, GPUs, NICs and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

from pipeline.hardware.topology import Gpu, Ids, LinkLayer, Nic, NodeSnapshot, NumaNode, Port, TaskMask
from pipeline.placement.policy import LocalRank

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a regular machine."""

    sockets: int
    nodes_per_socket: int
    cores_per_node: int
    threads: int
    adjacent: bool
    """Siblings are numbered next to each other, not a stride apart."""

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cores(self) -> int:
        return self.nodes * self.cores_per_node

    def core(self, number: int) -> Ids:
        if self.adjacent:
            return tuple(range(number * self.threads, (number + 1) * self.threads))
        return tuple(number + thread * self.cores for thread in range(self.threads))


def _layouts(cores_per_node: int) -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout,
        sockets=st.integers(1, 2),
        nodes_per_socket=st.integers(1, 4),
        cores_per_node=st.integers(1, cores_per_node),
        threads=st.sampled_from([1, 2, 2, 4]),
        adjacent=st.booleans(),
    )


@st.composite
def snapshots(draw: Draw, cores_per_node: int = 9) -> NodeSnapshot:
    """A node with or without GPUs and NICs, all or part of it allowed."""
    layout = draw(_layouts(cores_per_node))
    cores = draw(_cores(layout))
    nodes = draw(_nodes(layout, cores))
    gpus, nics = draw(_devices(layout, nodes))
    online = tuple(sorted(cpu for core in cores for cpu in core))
    return NodeSnapshot(
        nodes=nodes,
        cores=tuple(cores),
        packages=draw(st.sampled_from([(), _packages(layout, nodes)])),
        l3_groups=draw(_caches(cores)),
        gpus=gpus,
        nics=nics,
        allowed=draw(_allowed(online, cores)),
        mems=draw(st.one_of(st.just(tuple(node.id for node in nodes)), _some([node.id for node in nodes]))),
        job_gpus=draw(st.one_of(st.just(tuple(gpu.bdf for gpu in gpus)), _some([gpu.bdf for gpu in gpus]), st.none())),
    )


def local_ranks(snapshot: NodeSnapshot) -> st.SearchStrategy[list[LocalRank]]:
    """Fewer ranks than GPUs, as many, or more."""
    most = max(2, 2 * len(snapshot.job_gpus or snapshot.gpus) + 1)
    usual = st.just(max(1, len(snapshot.job_gpus or ())))
    return st.one_of(usual, st.integers(1, most)).map(
        lambda count: [LocalRank(local_rank=i, rank=100 + i) for i in range(count)]
    )


@st.composite
def with_masks(draw: Draw, snapshot: NodeSnapshot, ranks: Sequence[LocalRank]) -> NodeSnapshot:
    """The node with a mask of its own for each task, as a scheduler that binds leaves them."""
    masks = [TaskMask(local_rank=rank.local_rank, cpus=draw(_some(snapshot.allowed))) for rank in ranks]
    return replace(snapshot, tasks=tuple(masks))


def _some(values: Sequence[T]) -> st.SearchStrategy[tuple[T, ...]]:
    """A part of the values, at least one where there is one, in their order."""
    if not values:
        return st.just(())
    places = st.sets(st.integers(0, len(values) - 1), min_size=1)
    return places.map(lambda chosen: tuple(values[i] for i in sorted(chosen)))


@st.composite
def _cores(draw: Draw, layout: Layout) -> list[Ids]:
    """All cores, perhaps without one thread that is offline."""
    cores = [layout.core(number) for number in range(layout.cores)]
    if layout.threads > 1 and draw(st.booleans()):
        victim = draw(st.integers(0, layout.cores - 1))
        cores[victim] = cores[victim][:-1]
    return cores


@st.composite
def _nodes(draw: Draw, layout: Layout, cores: Sequence[Ids]) -> tuple[NumaNode, ...]:
    """Nodes with CPUs, behind them perhaps some of GPU memory; perhaps one without memory."""
    memory_only = draw(st.integers(0, 3))
    count = layout.nodes + memory_only
    has_distances = draw(st.booleans())
    without_memory = draw(st.one_of(st.none(), st.integers(0, layout.nodes - 1)))
    found = []
    for node in range(count):
        mine = cores[node * layout.cores_per_node : (node + 1) * layout.cores_per_node]
        found.append(
            NumaNode(
                id=node,
                cpus=tuple(sorted(cpu for core in mine for cpu in core)),
                memory_total_bytes=0 if node == without_memory else 2**30,
                memory_free_bytes=draw(st.sampled_from([None, 0, 2**29])),
                distances=tuple(_slit(layout, node, other) for other in range(count)) if has_distances else (),
            )
        )
    return tuple(found)


def _slit(layout: Layout, a: int, b: int) -> int:
    if a == b:
        return 10
    if max(a, b) >= layout.nodes:
        return 80
    return 12 if a // layout.nodes_per_socket == b // layout.nodes_per_socket else 32


def _packages(layout: Layout, nodes: Sequence[NumaNode]) -> tuple[Ids, ...]:
    per = layout.nodes_per_socket
    groups = [nodes[socket * per : (socket + 1) * per] for socket in range(layout.sockets)]
    return tuple(tuple(sorted(cpu for node in group for cpu in node.cpus)) for group in groups)


@st.composite
def _caches(draw: Draw, cores: Sequence[Ids]) -> tuple[Ids, ...]:
    """None known, or every few cores one."""
    size = draw(st.sampled_from([0, 1, 2, 4]))
    groups = [cores[i : i + size] for i in range(0, len(cores), size)] if size else []
    return tuple(tuple(sorted(cpu for core in group for cpu in core)) for group in groups)


def _allowed(online: Ids, cores: Sequence[Ids]) -> st.SearchStrategy[Ids]:
    whole_cores = _some(cores).map(lambda some: tuple(sorted(cpu for core in some for cpu in core)))
    one_thread = st.just(tuple(sorted(core[0] for core in cores)))
    all_but_one = st.sampled_from(online).map(lambda out: tuple(cpu for cpu in online if cpu != out) or online)
    return st.one_of(st.just(online), whole_cores, one_thread, all_but_one, _some(online))


@st.composite
def _devices(draw: Draw, layout: Layout, nodes: Sequence[NumaNode]) -> tuple[tuple[Gpu, ...], tuple[Nic, ...]]:
    """Switches on host bridges of nodes, each with some GPUs and NICs below it."""
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    memory_nodes = [node.id for node in nodes if not node.cpus]
    for switch in range(draw(st.integers(0, 4))):
        node = nodes[draw(st.integers(0, layout.nodes - 1))]
        bus = 0x10 * (switch + 1)
        root = (f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0")
        for place in range(draw(st.integers(0, 3))):
            device = f"0000:{bus + 2 + place:02x}:00.0"
            path = (*root, f"0000:{bus + 1:02x}:{place + 1:02x}.0", device)
            gpus.append(
                Gpu(
                    bdf=device,
                    numa_node=draw(st.sampled_from([node.id, node.id, node.id, -1, *memory_nodes])),
                    local_cpus=draw(st.sampled_from([None, node.cpus])),
                    pci_path=path,
                )
            )
        for place in range(draw(st.integers(0, 3))):
            device = f"0000:{bus + 8 + place:02x}:00.0"
            path = (*root[: draw(st.sampled_from([1, 2, 3, 3, 3]))], f"0000:{bus + 1:02x}:{place + 9:02x}.0", device)
            nics.extend(draw(_functions(device, path, node.id)))
    names = draw(st.permutations([f"mlx5_{i}" for i in range(len(nics))]))
    return tuple(gpus), tuple(replace(nic, name=name) for nic, name in zip(nics, names, strict=True))


@st.composite
def _functions(draw: Draw, device: str, path: tuple[str, ...], node: int) -> list[Nic]:
    """A card: one function, two ports, or virtual functions with or without the physical one."""
    layer = draw(st.sampled_from([LinkLayer.infiniband] * 3 + [LinkLayer.ethernet, LinkLayer.unspecified]))
    port = Port(
        number=1,
        active=draw(st.integers(0, 9)) > 0,
        rate_gbps=draw(st.sampled_from([400, 400, 200, None])),
        link_layer=layer,
    )
    numa = draw(st.sampled_from([node, node, -1]))
    card = Nic(
        name="",
        bdf=device,
        numa_node=numa,
        pci_path=path,
        ports=draw(st.sampled_from([(port,), (port,), None])),
        is_bond=draw(st.integers(0, 4)) == 0,
    )
    kind = draw(st.sampled_from(["one", "one", "two ports", "virtual"]))
    others = [f"{device[:-1]}{i}" for i in (1, 2)]
    if kind == "one":
        return [card]
    if kind == "two ports":
        return [card, replace(card, bdf=others[0], pci_path=(*path[:-1], others[0]))]
    virtual = [replace(card, bdf=bdf, physfn=device, is_bond=False, pci_path=(*path[:-1], bdf)) for bdf in others]
    return virtual + draw(st.sampled_from([[], [card]]))
