"""Reads the topology files of NCCL (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) into a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

from pipeline.hardware.topology import (
    Gpu,
    LinkLayer,
    Nic,
    NodeSnapshot,
    NumaNode,
    Port,
    TopologyError,
    normalize_bdf,
    parse_mask,
)

_GPU_CLASSES = ("0x0300", "0x0302")
_NIC_CLASSES = ("0x0200", "0x0207")
_AMAZON = "0x1d0f"


@dataclass(frozen=True, slots=True)
class _Device:
    """One end point of the PCI tree."""

    element: ElementTree.Element
    bdf: str
    node: int
    path: tuple[str, ...]

    @property
    def pci_class(self) -> str:
        return self.element.get("class", "")


def parse_nccl_topology(text: str) -> NodeSnapshot:
    """The node as such a file has it: no siblings, no sockets, all CPUs and GPUs allowed.

    Raises TopologyError when it is cut, malformed, or leaves out CPUs or what a device is.
    """
    try:
        root = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        raise TopologyError(f"NCCL topology: {error}: the file is cut or no XML") from error
    if root.tag != "system":
        raise TopologyError(f"NCCL topology: the outermost element is <{root.tag}>, must be <system>")
    nodes = tuple(sorted((_node(cpu) for cpu in root.iter("cpu")), key=lambda node: node.id))
    devices = [device for cpu in root.iter("cpu") for device in _devices(cpu)]
    gpus = tuple(_gpu(device) for device in devices if device.pci_class.startswith(_GPU_CLASSES))
    cpus = tuple(sorted(cpu for node in nodes for cpu in node.cpus))
    return NodeSnapshot(
        nodes=nodes,
        cores=tuple((cpu,) for cpu in cpus),
        gpus=gpus,
        nics=tuple(_nic(device) for device in devices if device.pci_class.startswith(_NIC_CLASSES)),
        allowed=cpus,
        mems=tuple(node.id for node in nodes),
        job_gpus=tuple(gpu.bdf for gpu in gpus),
        untold=("cpus",),
    )


def _node(cpu: ElementTree.Element) -> NumaNode:
    number, mask = cpu.get("numaid", ""), cpu.get("affinity")
    if not number.isdigit():
        raise TopologyError(f"NCCL topology: <cpu> with numaid {number!r}")
    if not mask:
        raise TopologyError(f"NCCL topology: <cpu numaid={number!r}> has no affinity: its CPUs can't be told")
    return NumaNode(id=int(number), cpus=parse_mask(mask))


def _devices(cpu: ElementTree.Element) -> Iterable[_Device]:
    number = cpu.get("numaid", "")
    return _below(cpu, node=int(number), path=(f"numa{number}",))


def _below(parent: ElementTree.Element, *, node: int, path: tuple[str, ...]) -> Iterable[_Device]:
    for element in parent.findall("pci"):
        bdf = normalize_bdf(element.get("busid", ""))
        here = (*path, bdf)
        if element.find("pci") is not None:
            yield from _below(element, node=node, path=here)
        elif "class" not in element.attrib:
            raise TopologyError(f"NCCL topology: <pci busid={bdf!r}> has no class: what it is can't be told")
        else:
            yield _Device(element, bdf, node, here)


def _gpu(device: _Device) -> Gpu:
    return Gpu(bdf=device.bdf, numa_node=device.node, pci_path=device.path)


def _nic(device: _Device) -> Nic:
    """Named as NCCL names it in a dump; files written by hand have no names."""
    net = device.element.find(".//net")
    name = None if net is None else net.get("name")
    return Nic(
        name=name or device.bdf,
        bdf=device.bdf,
        numa_node=device.node,
        pci_path=device.path,
        ports=_ports(device, net),
    )


def _ports(device: _Device, net: ElementTree.Element | None) -> tuple[Port, ...] | None:
    """Amazon's adapters speak neither InfiniBand nor RoCE; of others a dump at least tells the rate (Mb/s)."""
    speed = "" if net is None else net.get("speed", "")
    rate = int(speed) / 1000 if speed.isdigit() else None
    if device.element.get("vendor") == _AMAZON:
        return (Port(number=1, active=True, rate_gbps=rate, link_layer=LinkLayer.unspecified),)
    if rate is None:
        return None
    layer = LinkLayer.infiniband if device.pci_class.startswith("0x0207") else LinkLayer.ethernet
    return (Port(number=1, active=True, rate_gbps=rate, link_layer=layer),)
