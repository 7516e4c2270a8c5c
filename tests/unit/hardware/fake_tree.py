"""Writes a snapshot as the tree of /sys and /proc files it could have been read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.hardware.topology import Gpu, Nic, NodeSnapshot, NumaNode, Port, format_ids


def write_files(root: Path, files: Mapping[str, object]) -> None:
    """Each path below the root gets its text and a newline."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def write_tree(root: Path, snapshot: NodeSnapshot) -> Path:
    """The machine below `root`; returns it."""
    write_files(
        root,
        {
            "proc/self/status": f"Name:\tx\nCpus_allowed_list:\t{format_ids(snapshot.allowed)}\n"
            f"Mems_allowed_list:\t{format_ids(snapshot.mems)}",
            "sys/devices/system/cpu/online": format_ids(snapshot.online),
            "sys/devices/system/node/online": format_ids(node.id for node in snapshot.nodes),
        },
    )
    _write_cpus(root, snapshot)
    for node in snapshot.nodes:
        _write_node(root, node)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for gpu in snapshot.gpus:
        _write_gpu(root, gpu)
    for nic in snapshot.nics:
        _write_nic(root, nic)
    return root


def _write_cpus(root: Path, snapshot: NodeSnapshot) -> None:
    for core in snapshot.cores:
        for cpu in core:
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            write_files(root, {f"{folder}/topology/thread_siblings_list": format_ids(core)})
            for number, package in enumerate(snapshot.packages):
                if cpu in package:
                    write_files(root, {f"{folder}/topology/physical_package_id": number})
            for group in snapshot.l3_groups:
                if cpu in group:
                    cache = f"{folder}/cache/index3"
                    write_files(root, {f"{cache}/level": 3, f"{cache}/shared_cpu_list": format_ids(group)})


def _write_node(root: Path, node: NumaNode) -> None:
    folder = f"sys/devices/system/node/node{node.id}"
    memory = {"MemTotal": node.memory_total_bytes, "MemFree": node.memory_free_bytes}
    lines = [f"Node {node.id} {key}:  {value // 1024} kB" for key, value in memory.items() if value is not None]
    files = {f"{folder}/cpulist": format_ids(node.cpus), f"{folder}/meminfo": "\n".join(lines)}
    if node.distances:
        files[f"{folder}/distance"] = " ".join(map(str, node.distances))
    write_files(root, files)


def _write_device(root: Path, bdf: str, pci_path: tuple[str, ...], numa_node: int) -> Path:
    """The device's folder, with the link by which it is found."""
    folder = root.joinpath("sys/devices", *pci_path)
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{numa_node}\n")
    (root / "sys/bus/pci/devices" / bdf).symlink_to(Path("../../../devices", *pci_path))
    return folder


def _write_gpu(root: Path, gpu: Gpu) -> None:
    folder = _write_device(root, gpu.bdf, gpu.pci_path or (), gpu.numa_node)
    write_files(folder, {"class": "0x030200", "vendor": "0x10de"})
    if gpu.local_cpus is not None:
        write_files(folder, {"local_cpulist": format_ids(gpu.local_cpus)})
    if gpu.uuid is not None:
        lines = f"Model: \t\t {gpu.name}\nGPU UUID: \t {gpu.uuid}\nDevice Minor: \t {gpu.minor}"
        write_files(root, {f"proc/driver/nvidia/gpus/{gpu.bdf}/information": lines})


def _write_nic(root: Path, nic: Nic) -> None:
    folder = _write_device(root, nic.bdf or "", nic.pci_path or (), nic.numa_node)
    write_files(folder, {"class": "0x020700", "vendor": "0x15b3"})
    rdma = root / "sys/class/infiniband" / nic.name
    rdma.mkdir(parents=True)
    (rdma / "device").symlink_to(folder)
    if nic.physfn is not None:
        physical = root / "sys/devices/physical" / nic.physfn
        physical.mkdir(parents=True, exist_ok=True)
        (folder / "physfn").symlink_to(physical)
    if nic.is_bond:
        (folder / "net/ib0/master/bonding").mkdir(parents=True)
    for port in nic.ports or ():
        _write_port(rdma / "ports" / str(port.number), port)


def _write_port(folder: Path, port: Port) -> None:
    files: dict[str, object] = {
        "state": "4: ACTIVE" if port.active else "1: DOWN",
        "link_layer": port.link_layer.value,
    }
    if port.rate_gbps is not None:
        files["rate"] = f"{port.rate_gbps:g} Gb/sec (4X NDR)"
    write_files(folder, files)
