"""Reads the XML of hwloc 2 (`lstopo file.xml`) into a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from pipeline.hardware.topology import (
    Gpu,
    Ids,
    LinkLayer,
    Nic,
    NodeSnapshot,
    NumaNode,
    Port,
    TopologyError,
    normalize_bdf,
    parse_mask,
)

_GPU = re.compile(r"03(?:00|02|80) \[(?:10de|1002):([0-9a-f]{4})\]")
"""Display controllers of the two makers of GPUs; a board's own VGA is another's."""
_RDMA = "3"
"""hwloc's number for OpenFabrics devices."""
_AMAZON = "[1d0f:"
"""Its adapters speak neither InfiniBand nor RoCE."""
_IO = ("Bridge", "PCIDev", "OSDev")


@dataclass(frozen=True, slots=True)
class _Device:
    """One PCI device and where it hangs."""

    element: ElementTree.Element
    path: tuple[str, ...]
    local_cpus: Ids
    nodes: Ids

    @property
    def bdf(self) -> str:
        return self.path[-1]

    def info(self, name: str) -> str | None:
        """Of the device or of what the system made of it."""
        return next((info.get("value") for info in self.element.iter("info") if info.get("name") == name), None)


def parse_hwloc(text: str) -> NodeSnapshot:
    """The node as hwloc has it; what it calls allowed is allowed.

    Raises TopologyError when the file is cut, malformed or of another version.
    """
    machine, root = _machine(text)
    cores = tuple(_cpus_below(core) for core in _objects(machine, "Core"))
    online = {cpu for core in cores for cpu in core}
    nodes = _nodes(machine, root)
    devices = list(_devices(machine, (), machine))
    gpus = tuple(gpu for device in devices if (gpu := _gpu(device)) is not None)
    return NodeSnapshot(
        nodes=nodes,
        cores=tuple(sorted(cores)),
        packages=_masks(machine, "Package"),
        l3_groups=_masks(machine, "L3Cache"),
        gpus=gpus,
        nics=tuple(nic for device in devices if (nic := _nic(device)) is not None),
        allowed=tuple(cpu for cpu in _mask(machine, "allowed_cpuset") if cpu in online),
        mems=tuple(node for node in _mask(machine, "allowed_nodeset") if node in {known.id for known in nodes}),
        job_gpus=tuple(gpu.bdf for gpu in gpus),
        # Without the PCI bus (lstopo --no-io) it is silent about both.
        untold=() if devices else ("gpus", "nics"),
    )


def _machine(text: str) -> tuple[ElementTree.Element, ElementTree.Element]:
    try:
        root = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        raise TopologyError(f"hwloc: {error}: the file is cut or no XML") from error
    machine = root.find("object[@type='Machine']")
    if root.tag != "topology" or not root.get("version", "").startswith("2.") or machine is None:
        version = root.get("version", "none")
        raise TopologyError(f"hwloc: <{root.tag}> of version {version}, must be <topology> of version 2 with a Machine")
    return machine, root


def _objects(below: ElementTree.Element, kind: str) -> Iterator[ElementTree.Element]:
    return (element for element in below.iter("object") if element.get("type") == kind)


def _cpus_below(core: ElementTree.Element) -> Ids:
    return tuple(sorted(_number(unit, "os_index") for unit in _objects(core, "PU")))


def _masks(machine: ElementTree.Element, kind: str) -> tuple[Ids, ...]:
    return tuple(_mask(element, "cpuset") for element in _objects(machine, kind))


def _mask(element: ElementTree.Element, name: str) -> Ids:
    value = element.get(name)
    if value is None:
        raise TopologyError(f"hwloc: a {element.get('type')} without {name}")
    return parse_mask(value)


def _number(element: ElementTree.Element, name: str) -> int:
    value = element.get(name, "")
    if not value.isdigit():
        raise TopologyError(f"hwloc: a {element.get('type')} with {name} {value!r}")
    return int(value)


def _nodes(machine: ElementTree.Element, root: ElementTree.Element) -> tuple[NumaNode, ...]:
    """hwloc hangs memory without CPUs beside the node it is near; the first node of a place has the CPUs."""
    elements = sorted(_objects(machine, "NUMANode"), key=lambda element: element.get("subtype") == "GPUMemory")
    distances = _distances(root)
    taken: set[int] = set()
    nodes = []
    for element in elements:
        cpus = tuple(cpu for cpu in _mask(element, "cpuset") if cpu not in taken)
        taken.update(cpus)
        memory = element.get("local_memory")
        node_id = _number(element, "os_index")
        nodes.append(
            NumaNode(
                id=node_id,
                cpus=cpus,
                memory_total_bytes=None if memory is None else int(memory),
                distances=tuple(far for _, far in sorted(distances.get(node_id, {}).items())),
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.id))


def _distances(root: ElementTree.Element) -> dict[int, dict[int, int]]:
    """By the ids of both nodes; none where the file has no latencies."""
    table = root.find("distances2[@type='NUMANode'][@indexing='os']")
    if table is None:
        return {}
    ids = [int(word) for element in table.findall("indexes") for word in (element.text or "").split()]
    values = [int(word) for element in table.findall("u64values") for word in (element.text or "").split()]
    if len(values) != len(ids) ** 2:
        raise TopologyError(f"hwloc: {len(values)} distances for {len(ids)} nodes")
    return {a: dict(zip(ids, values[i * len(ids) : (i + 1) * len(ids)], strict=True)) for i, a in enumerate(ids)}


def _devices(parent: ElementTree.Element, path: tuple[str, ...], place: ElementTree.Element) -> Iterator[_Device]:
    """PCI devices below `parent`; `place` is the nearest thing with CPUs."""
    for element in parent.findall("object"):
        kind = element.get("type")
        if kind not in _IO:
            yield from _devices(element, (), element)
        elif kind == "Bridge":
            yield from _devices(element, (*path, _bridge_name(element)), place)
        elif kind == "PCIDev":
            here = (*path, normalize_bdf(element.get("pci_busid", "")))
            yield _Device(element, here, _mask(place, "cpuset"), _mask(place, "nodeset"))


def _bridge_name(bridge: ElementTree.Element) -> str:
    """A host bridge by the first bus below it, as Linux names it."""
    if "pci_busid" in bridge.attrib:
        return normalize_bdf(bridge.attrib["pci_busid"])
    match = re.fullmatch(r"([0-9a-f]+):\[([0-9a-f]{2})-[0-9a-f]{2}\]", bridge.get("bridge_pci", ""))
    if match is None:
        raise TopologyError(f"hwloc: a host bridge with bridge_pci {bridge.get('bridge_pci')!r}")
    return f"pci{match[1]}:{match[2]}"


def _numa_node(device: _Device) -> int:
    return device.nodes[0] if len(device.nodes) == 1 else -1


def _gpu(device: _Device) -> Gpu | None:
    """By its class and maker; its names in the PCI list (GH100 [H100 SXM5 80GB]) are not those of its driver."""
    match = _GPU.match(device.element.get("pci_type", ""))
    if match is None:
        return None
    return Gpu(
        bdf=device.bdf,
        uuid=device.info("NVIDIAUUID"),
        name=device.info("GPUModel"),
        pci_device_id=match[1],
        numa_node=_numa_node(device),
        local_cpus=device.local_cpus,
        pci_path=device.path,
    )


def _nic(device: _Device) -> Nic | None:
    """A PCI device of which the system made an RDMA device."""
    rdma = next((one for one in _objects(device.element, "OSDev") if one.get("osdev_type") == _RDMA), None)
    if rdma is None:
        return None
    name = rdma.get("name", "")
    return Nic(
        name=name,
        bdf=device.bdf,
        numa_node=_numa_node(device),
        pci_path=device.path,
        ports=_ports(device),
        is_bond="bond" in name,
    )


def _ports(device: _Device) -> tuple[Port, ...] | None:
    state, pci_type = device.info("Port1State"), device.element.get("pci_type", "")
    if state is None:
        return None
    layer = LinkLayer.infiniband if pci_type.startswith("0207") else LinkLayer.ethernet
    if _AMAZON in pci_type:
        layer = LinkLayer.unspecified
    return (Port(number=1, active=state == "4", rate_gbps=None, link_layer=layer),)
