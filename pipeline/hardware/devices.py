"""GPUs and RDMA devices as sysfs has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.hardware.topology import Gpu, LinkLayer, Nic, Port, TopologyError, normalize_bdf
from pipeline.hardware.tree import Tree

_PCI = "sys/bus/pci/devices"
_RDMA = "sys/class/infiniband"
_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers."""


def read_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """NVIDIA GPUs of the machine, whoever may use them; virtual functions and those given to VMs are left out."""
    return tuple(_read_gpu(tree, bdf) for bdf in tree.names(_PCI) if _is_gpu(tree, f"{_PCI}/{bdf}"))


def read_nics(tree: Tree) -> tuple[Nic, ...]:
    """RDMA devices that sit on a PCI bus."""
    nics = (_read_nic(tree, name) for name in tree.names(_RDMA))
    return tuple(nic for nic in nics if nic is not None)


def _is_gpu(tree: Tree, folder: str) -> bool:
    return (
        tree.text(f"{folder}/vendor") == _NVIDIA
        and (tree.text(f"{folder}/class") or "").startswith(_GPU_CLASSES)
        and _link_name(tree, f"{folder}/physfn") is None
        and _link_name(tree, f"{folder}/driver") != "vfio-pci"
    )


def _read_gpu(tree: Tree, bdf: str) -> Gpu:
    driver = _driver_fields(tree, bdf)
    minor = driver.get("Device Minor", "")
    return Gpu(
        bdf=normalize_bdf(bdf),
        uuid=driver.get("GPU UUID"),
        name=driver.get("Model"),
        minor=int(minor) if minor.isdigit() else None,
        pci_device_id=(tree.text(f"{_PCI}/{bdf}/device") or "").removeprefix("0x") or None,
        numa_node=_numa_node(tree, f"{_PCI}/{bdf}"),
        local_cpus=tree.ids(f"{_PCI}/{bdf}/local_cpulist"),
        pci_path=_pci_path(tree, f"{_PCI}/{bdf}"),
    )


def _driver_fields(tree: Tree, bdf: str) -> Mapping[str, str]:
    """What NVIDIA's driver tells without NVML: lines `GPU UUID:  GPU-…`."""
    lines = (tree.text(f"proc/driver/nvidia/gpus/{bdf}/information") or "").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _read_nic(tree: Tree, name: str) -> Nic | None:
    """None for software devices (rxe, siw)."""
    device = f"{_RDMA}/{name}/device"
    bdf = _bdf_of_link(tree, device)
    if bdf is None:
        return None
    return Nic(
        name=name,
        bdf=bdf,
        numa_node=_numa_node(tree, device),
        pci_path=_pci_path(tree, device),
        ports=_read_ports(tree, f"{_RDMA}/{name}/ports"),
        physfn=_bdf_of_link(tree, f"{device}/physfn"),
        is_bond="bond" in name or _is_enslaved(tree, f"{device}/net"),
    )


def _read_ports(tree: Tree, folder: str) -> tuple[Port, ...] | None:
    numbers = [name for name in tree.names(folder) if name.isdigit()]
    return tuple(_read_port(tree, f"{folder}/{name}", int(name)) for name in numbers) or None


def _read_port(tree: Tree, folder: str, number: int) -> Port:
    return Port(
        number=number,
        active=(tree.text(f"{folder}/state") or "").endswith("ACTIVE"),
        rate_gbps=_rate(tree.text(f"{folder}/rate")),
        link_layer=_link_layer(tree.text(f"{folder}/link_layer")),
    )


def _rate(text: str | None) -> float | None:
    """From `400 Gb/sec (4X NDR)`."""
    match = re.match(r"([\d.]+) Gb/sec", text or "")
    return float(match[1]) if match else None


def _link_layer(text: str | None) -> LinkLayer:
    known = {layer.value: layer for layer in LinkLayer}
    return known.get(text or "", LinkLayer.unspecified)


def _is_enslaved(tree: Tree, folder: str) -> bool:
    return any(tree.path(f"{folder}/{name}/master/bonding").exists() for name in tree.names(folder))


def _numa_node(tree: Tree, folder: str) -> int:
    node = tree.number(f"{folder}/numa_node")
    return -1 if node is None else node


def _link_name(tree: Tree, name: str) -> str | None:
    target = tree.target(name)
    return None if target is None else target[-1]


def _bdf_of_link(tree: Tree, name: str) -> str | None:
    try:
        return normalize_bdf(_link_name(tree, name) or "")
    except TopologyError:
        return None


def _pci_path(tree: Tree, name: str) -> tuple[str, ...] | None:
    """From the host bridge down; what stands above it (ACPI, VMBus) says nothing about distance."""
    parts = tree.target(name) or ()
    start = next((i for i, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)), None)
    return None if start is None else parts[start:]
