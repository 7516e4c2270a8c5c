"""Writes a snapshot as the tree of /sys and /proc files it could have been read from.

`python fake_tree.py RECORDING FOLDER` writes what one node of the development cluster shows, and `look.sh` beside it:
the same node in the words of slurm.conf and of fakenode.c.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from pipeline.errors import HimoriError
from pipeline.hardware.recording import from_document
from pipeline.hardware.topology import Gpu, Ids, Nic, NodeSnapshot, NumaNode, Port, format_ids

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
MEMORY_MIB_UNLESS_RECORDED = 1 << 20


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
            **{f"{CPU}/{name}": format_ids(snapshot.online) for name in ("online", "possible", "present")},
            f"{CPU}/kernel_max": 8191,
        },
    )
    _write_nodes(root, snapshot.nodes)
    _write_cpus(root, snapshot)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "proc/driver").mkdir(parents=True)
    for gpu in snapshot.gpus:
        _write_gpu(root, gpu)
    for nic in snapshot.nics:
        _write_nic(root, nic)
    return root


# --------------------------------------------------------------------------- CPUs and memory


def _write_cpus(root: Path, snapshot: NodeSnapshot) -> None:
    """What hwloc and the C library read beside what himori does."""
    packages = {cpu: (number, package) for number, package in enumerate(snapshot.packages) for cpu in package}
    caches = {cpu: group for group in snapshot.l3_groups for cpu in group}
    for number, core in enumerate(snapshot.cores):
        for cpu in core:
            folder = f"{CPU}/cpu{cpu}"
            files = {
                f"{folder}/topology/core_id": number,
                **_siblings(f"{folder}/topology", "thread", "core_cpus", core),
            }
            if cpu in packages:
                package, cpus = packages[cpu]
                files[f"{folder}/topology/physical_package_id"] = package
                files |= _siblings(f"{folder}/topology", "core", "package_cpus", cpus)
            if cpu in caches:
                cache = f"{folder}/cache/index3"
                files |= {f"{cache}/level": 3, f"{cache}/type": "Unified"}
                files |= {
                    f"{cache}/shared_cpu_list": format_ids(caches[cpu]),
                    f"{cache}/shared_cpu_map": _mask(caches[cpu]),
                }
            if cpu:
                files[f"{folder}/online"] = 1
            write_files(root, files)


def _siblings(folder: str, old: str, new: str, cpus: Ids) -> dict[str, object]:
    """One set of CPUs by the kernel's old and new names, as list and as mask."""
    return {
        f"{folder}/{old}_siblings_list": format_ids(cpus),
        f"{folder}/{old}_siblings": _mask(cpus),
        f"{folder}/{new}_list": format_ids(cpus),
        f"{folder}/{new}": _mask(cpus),
    }


def _mask(ids: Iterable[int]) -> str:
    """32-bit words, the highest first."""
    bits = sum(1 << number for number in ids)
    words = max(1, (bits.bit_length() + 31) // 32)
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def _write_nodes(root: Path, nodes: tuple[NumaNode, ...]) -> None:
    everywhere = format_ids(node.id for node in nodes)
    with_memory = format_ids(node.id for node in nodes if node.memory_total_bytes != 0)
    write_files(
        root,
        {
            **{f"{NODE}/{name}": everywhere for name in ("online", "possible")},
            **{f"{NODE}/{name}": with_memory for name in ("has_memory", "has_normal_memory")},
            f"{NODE}/has_cpu": format_ids(node.id for node in nodes if node.cpus),
        },
    )
    for node in nodes:
        _write_node(root, node)


def _write_node(root: Path, node: NumaNode) -> None:
    folder = f"{NODE}/node{node.id}"
    memory = {"MemTotal": node.memory_total_bytes, "MemFree": node.memory_free_bytes}
    lines = [f"Node {node.id} {key}:  {value // 1024} kB" for key, value in memory.items() if value is not None]
    files = {
        f"{folder}/cpulist": format_ids(node.cpus),
        f"{folder}/cpumap": _mask(node.cpus),
        f"{folder}/meminfo": "\n".join(lines),
    }
    if node.distances:
        files[f"{folder}/distance"] = " ".join(map(str, node.distances))
    write_files(root, files)


# --------------------------------------------------------------------------- devices


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
    told = {"Model": gpu.name, "GPU UUID": gpu.uuid, "Device Minor": gpu.minor}
    lines = [f"{key}: \t {value}" for key, value in told.items() if value is not None]
    if lines:
        write_files(root, {f"proc/driver/nvidia/gpus/{gpu.bdf}/information": "\n".join(lines)})


def _write_nic(root: Path, nic: Nic) -> None:
    path = nic.pci_path or ()
    folder = _write_device(root, nic.bdf or "", path, nic.numa_node)
    write_files(folder, {"class": "0x020700", "vendor": "0x15b3"})
    rdma = root / "sys/class/infiniband" / nic.name
    rdma.mkdir(parents=True)
    (rdma / "device").symlink_to(Path("../../../devices", *path))
    if nic.physfn is not None:
        physical = root / "sys/devices/physical" / nic.physfn
        physical.mkdir(parents=True, exist_ok=True)
        (folder / "physfn").symlink_to(Path(*[".."] * len(path), "physical", nic.physfn))
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


# --------------------------------------------------------------------------- for slurm/dev


def settings(snapshot: NodeSnapshot) -> dict[str, object]:
    """The node as slurm.conf and fakenode.c are told of it.

    Slurm numbers cores socket by socket, and CPUs core by core: LOOK_CPU_ORDER gives the CPU of each of its numbers.
    """
    cores = sorted(snapshot.cores, key=lambda core: (_package_of(snapshot, core), core))
    gpus = sorted(snapshot.gpus, key=lambda gpu: (gpu.minor if gpu.minor is not None else -1, gpu.bdf))
    memory = sum(node.memory_total_bytes or 0 for node in snapshot.nodes) >> 20
    sockets = max(1, len(snapshot.packages))
    return {
        "LOOK_SOCKETS": sockets,
        "LOOK_CORES": len(cores) // sockets,
        "LOOK_THREADS": max(len(core) for core in cores),
        "LOOK_MEM": memory or MEMORY_MIB_UNLESS_RECORDED,
        "LOOK_CPUS": format_ids(snapshot.online),
        "LOOK_MEMS": format_ids(snapshot.mems),
        "LOOK_CPU_ORDER": " ".join(str(cpu) for core in cores for cpu in core),
        "LOOK_GPUS": len(gpus),
        "LOOK_GPUTYPE": _gpu_type(gpus),
        "LOOK_GPU_CORES": " ".join(_home_cores(snapshot, gpu, cores) for gpu in gpus),
    }


def _package_of(snapshot: NodeSnapshot, core: Ids) -> int:
    return next((number for number, package in enumerate(snapshot.packages) if core[0] in package), 0)


def _gpu_type(gpus: Iterable[Gpu]) -> str:
    """`h100` from `NVIDIA H100 80GB HBM3`."""
    words = (re.search(r"\b[a-z]+\d+\b", (gpu.name or "").lower()) for gpu in gpus)
    return next((word[0] for word in words if word), "gpu")


def _home_cores(snapshot: NodeSnapshot, gpu: Gpu, cores: list[Ids]) -> str:
    node = snapshot.node(gpu.numa_node)
    home = set(node.cpus if node else snapshot.online)
    return format_ids(number for number, core in enumerate(cores) if set(core) & home)


def main(recording: Path, folder: Path) -> None:
    """Writes the tree of a recording and its settings."""
    snapshot = from_document(yaml.safe_load(recording.read_text(encoding="utf-8")))
    write_tree(folder, snapshot)
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings(snapshot).items()]
    (folder / "look.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (HimoriError, OSError, yaml.YAMLError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
