"""A node as plain data: its NUMA nodes, cores, GPUs and NICs, and what of them this job may use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from pipeline.errors import UserError

Ids = tuple[int, ...]
"""CPU or NUMA node ids, ascending; as a recording writes them: `0-3,8`."""

_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


class TopologyError(UserError):
    """A description of a node is cut, malformed or contradicts itself."""


class Distance(IntEnum):
    """How far apart two PCI devices are, in the words of `nvidia-smi topo`."""

    LOC = 0
    """The same device."""
    PIX = 1
    """Below one PCIe switch."""
    PXB = 2
    """Several switches, no host bridge."""
    PHB = 3
    """Through one host bridge."""
    NODE = 4
    """Between host bridges of one NUMA node."""
    SYS = 5
    """Between NUMA nodes."""


class LinkLayer(Enum):
    """What an RDMA port speaks."""

    infiniband = "InfiniBand"
    ethernet = "Ethernet"
    unspecified = "Unspecified"
    """Neither: EFA and other providers with their own transport."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumaNode:
    """One NUMA node; CPU-less ones (GPU memory, CXL) and memory-less ones exist."""

    id: int
    cpus: Ids
    """Online CPUs."""
    memory_total_bytes: int | None = None
    """None: not known."""
    memory_free_bytes: int | None = None
    """None: not known."""
    distances: tuple[int, ...] = ()
    """SLIT distances to the nodes of the snapshot in order of their ids; empty: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MigInstance:
    """One part of a GPU that was cut into several (MIG)."""

    uuid: str | None
    """`MIG-…`; None: left out of a recording."""
    gpu_instance: int
    compute_instance: int
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU by its place on the PCI bus; what only its driver tells is None without it."""

    bdf: str
    """PCI bus id (`0000:17:00.0`); a source that has none gives its own name (`GPU0`)."""
    uuid: str | None = None
    name: str | None = None
    minor: int | None = None
    """N of /dev/nvidiaN."""
    pci_device_id: str | None = None
    """Hexadecimal; tells apart what is named alike."""
    compute_capability: int | None = None
    """Ten times CUDA's number."""
    memory_bytes: int | None = None
    """What nvidia-smi shows as the total."""
    power_limit_watts: float | None = None
    """The limit in force."""
    mig: tuple[MigInstance, ...] = ()
    is_reachable: bool | None = None
    """Whether the driver shows it to this process; None: it wasn't asked."""
    numa_node: int = -1
    """As sysfs has it; -1: not known."""
    local_cpus: Ids | None = None
    """CPUs the kernel calls local; None: not known."""
    pci_path: tuple[str, ...] | None = None
    """Host bridge, bridges and the device itself, outermost first; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One port of an RDMA device."""

    number: int
    active: bool
    rate_gbps: float | None
    """Gb/s; None: not known."""
    link_layer: LinkLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """One RDMA device."""

    name: str
    """RDMA name, `mlx5_0`."""
    bdf: str | None = None
    numa_node: int = -1
    """As sysfs has it; -1: not known."""
    pci_path: tuple[str, ...] | None = None
    """As for GPUs."""
    ports: tuple[Port, ...] | None = None
    """None: not known (a table has none)."""
    physfn: str | None = None
    """Bus id of the physical function when this is a virtual one."""
    is_bond: bool = False
    """Two ports joined into one device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A distance somebody printed; it stands before what the PCI paths say."""

    a: str
    """Bus id of a GPU or name of a NIC."""
    b: str
    distance: Distance


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskMask:
    """The CPUs one local task may use."""

    local_rank: int
    cpus: Ids


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSnapshot:
    """One node as one process saw it; everything binding needs to know.

    Raises TopologyError when the parts contradict each other.
    """

    nodes: tuple[NumaNode, ...]
    """In order of their ids; empty: the source tells of none."""
    cores: tuple[Ids, ...]
    """Online CPUs of each physical core, cores in order of their first CPU."""
    packages: tuple[Ids, ...] = ()
    """CPUs of each socket; empty: not known."""
    l3_groups: tuple[Ids, ...] = ()
    """CPUs that share a last-level cache; empty: not known."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs of the machine, whoever may use them."""
    nics: tuple[Nic, ...] = ()
    allowed: Ids
    """CPUs this job may use here: affinity and cpuset together."""
    mems: Ids
    """NUMA nodes this job may take memory from."""
    tasks: tuple[TaskMask, ...] = ()
    """Masks of the local tasks where they differ from `allowed`."""
    job_gpus: tuple[str, ...] | None = None
    """Bus ids of this job's GPUs; None: could not be learnt."""
    links: tuple[Link, ...] = ()
    driver: str | None = None
    """Version of the GPU driver; None: none, or not known."""
    untold: tuple[str, ...] = ()
    """What the source can't tell though it may look as if it did: `gpus`, `nics`, `cpus` (all of them, and cores)."""

    def __post_init__(self) -> None:
        """Refuses what no machine can be."""
        _check_unique("NUMA node", [node.id for node in self.nodes])
        _check_unique("CPU in the cores", [cpu for core in self.cores for cpu in core])
        _check_unique("CPU in the NUMA nodes", [cpu for node in self.nodes for cpu in node.cpus])
        _check_unique("GPU", [gpu.bdf for gpu in self.gpus])
        _check_unique("NIC", [nic.name for nic in self.nics])
        for node in self.nodes:
            if len(node.distances) not in (0, len(self.nodes)):
                raise TopologyError(f"NUMA node {node.id}: {len(node.distances)} distances, {len(self.nodes)} nodes")
        if not set(self.allowed) & set(self.online):
            raise TopologyError(
                f"allowed CPUs {format_ids(self.allowed) or 'none'}: none is online ({format_ids(self.online)})"
            )
        if unknown := set(self.job_gpus or ()) - {gpu.bdf for gpu in self.gpus}:
            raise TopologyError(f"GPUs of the job {sorted(unknown)} aren't on this node")

    @property
    def online(self) -> tuple[int, ...]:
        """Every CPU of the machine, ascending."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def node(self, node_id: int) -> NumaNode | None:
        """The NUMA node of that id, or None."""
        return next((node for node in self.nodes if node.id == node_id), None)

    def cpu_nodes(self) -> tuple[NumaNode, ...]:
        """NUMA nodes that have CPUs."""
        return tuple(node for node in self.nodes if node.cpus)

    def socket_cpus(self, node: NumaNode) -> tuple[int, ...]:
        """CPUs of the socket a node with CPUs belongs to; the node's own where sockets are not known."""
        return next((p for p in self.packages if set(p) & set(node.cpus)), node.cpus)

    def same_socket(self, a: NumaNode, b: NumaNode) -> bool:
        """Whether two nodes with CPUs are known to be of one socket."""
        return a.id == b.id or bool(set(self.socket_cpus(a)) & set(b.cpus))

    def node_distance(self, a: int, b: int) -> int:
        """SLIT distance of two nodes; where the table is missing only its order means something."""
        first, second = self.node(a), self.node(b)
        if first is None or second is None:
            return _UNKNOWN_DISTANCE
        if first.distances:
            return first.distances[self.nodes.index(second)]
        if a == b:
            return 10
        return 12 if self.same_socket(first, second) else 20

    def device_distance(self, a: Gpu | Nic, b: Gpu | Nic) -> Distance:
        """How far two devices are: as printed, else by their PCI paths and NUMA nodes."""
        ends = {_link_name(a), _link_name(b)}
        printed = next((link.distance for link in self.links if {link.a, link.b} == ends), None)
        if printed is not None:
            return printed
        one_node = len(self.cpu_nodes()) == 1 or a.numa_node == b.numa_node != -1
        return pci_distance(a.pci_path, b.pci_path, same_node=one_node)


def _link_name(device: Gpu | Nic) -> str:
    return device.bdf if isinstance(device, Gpu) else device.name


_UNKNOWN_DISTANCE = 255
"""SLIT's own word for unreachable."""


def pci_distance(a: Sequence[str] | None, b: Sequence[str] | None, *, same_node: bool) -> Distance:
    """Distance of two devices by their PCI paths (host bridge first, the device last).

    Below a common switch each side is one downstream port and the device itself; more means further switches.
    """
    across = Distance.NODE if same_node else Distance.SYS
    if not a or not b or a[0] != b[0]:
        return across
    if tuple(a) == tuple(b):
        return Distance.LOC
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if common == 1 and not _same_device(a[-1], b[-1]):
        return Distance.PHB
    return Distance.PIX if max(len(a), len(b)) - common <= 2 else Distance.PXB


def _same_device(a: str, b: str) -> bool:
    return a.rpartition(".")[0] == b.rpartition(".")[0] != ""


def device_order(name: str) -> tuple[object, ...]:
    """Sort key of a bus id (as CUDA_DEVICE_ORDER=PCI_BUS_ID has it) or of a numbered name (mlx5_2 < mlx5_10)."""
    if match := _BDF.fullmatch(name.lower()):
        return (0, *(int(part or "0", 16) for part in match.groups()))
    return (1, *((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)))


def normalize_bdf(bdf: str) -> str:
    """A bus id as sysfs writes it: lower case, domain of four digits where that is enough.

    NVML pads the domain to eight digits. Raises TopologyError when it is no bus id.
    """
    match = _BDF.fullmatch(bdf.strip().lower())
    if match is None:
        raise TopologyError(f"{bdf!r} is no PCI bus id; expected something like 0000:17:00.0")
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}"


def parse_ids(text: str) -> tuple[int, ...]:
    """A list such as `0-3,8,10-11` as ascending ids; blank is none.

    Raises TopologyError when it isn't one.
    """
    ids: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise TopologyError(f"{text.strip()!r} is no list of ids; expected something like 0-3,8")
        ids.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(ids))


def parse_mask(text: str) -> tuple[int, ...]:
    """A bit mask in 32-bit words, highest first (`0x0000ffff,,0x1` or `ff,00000001`), as ascending ids.

    Raises TopologyError when it isn't one.
    """
    mask = 0
    for word in text.strip().split(","):
        digits = word.removeprefix("0x")
        if not re.fullmatch(r"[0-9a-f]{0,8}", digits):
            raise TopologyError(f"{text!r} is no mask of 32-bit words")
        mask = mask << 32 | int(digits or "0", 16)
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def format_ids(ids: Iterable[int]) -> str:
    """The inverse of `parse_ids`, shortest form."""
    runs: list[list[int]] = []
    for number in sorted(set(ids)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _check_unique(what: str, values: Iterable[int | str]) -> None:
    doubles = sorted(str(value) for value, count in Counter(values).items() if count > 1)
    if doubles:
        raise TopologyError(f"{what} {', '.join(doubles)} appears twice")
