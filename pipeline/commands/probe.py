"""probe: what this node is and where ranks would be put, or the same for a recording or a printed table."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from pipeline.errors import UserError
from pipeline.hardware.hwloc_xml import parse_hwloc
from pipeline.hardware.nccl_xml import parse_nccl_topology
from pipeline.hardware.recording import from_document, to_document
from pipeline.hardware.snapshot import read_snapshot
from pipeline.hardware.table_snapshot import snapshot_of_topo
from pipeline.hardware.tables import parse_topo
from pipeline.hardware.topology import Gpu, Nic, NodeSnapshot, NumaNode, format_ids
from pipeline.hardware.visibility import visible_gpus
from pipeline.placement.binding import Binding, bind
from pipeline.placement.environment import allowed_before_binding
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank
from pipeline.rundir import write_text

_GIB = 1 << 30


def probe(arguments: argparse.Namespace) -> int:
    """Prints a node; with --output also saves a recording that holds no names of hosts, serial numbers or addresses."""
    if arguments.overrides:
        from pipeline.commands.probe_cluster import probe_cluster

        return probe_cluster(arguments)
    snapshot = _read(arguments.read) if arguments.read else _this_node()
    count = arguments.ranks if arguments.ranks is not None else _usual_ranks(snapshot)
    ranks = [LocalRank(local_rank=rank, rank=rank) for rank in range(count)]
    bindings = bind(snapshot, ranks, BindingPolicy(cpus=CpuPolicy(arguments.policy))) if ranks else ()
    if arguments.output:
        write_text(arguments.output, yaml.safe_dump(to_document(snapshot), sort_keys=False, width=110))
    if arguments.json:
        print(
            json.dumps({"snapshot": to_document(snapshot), "bindings": [_as_json(one) for one in bindings]}, indent=1)
        )
    else:
        _print(snapshot, bindings, Console(highlight=False, markup=False))
    return 0


def _this_node() -> NodeSnapshot:
    snapshot = read_snapshot(allowed=allowed_before_binding(os.environ))
    found = visible_gpus(snapshot.gpus, os.environ)
    # Outside a job nobody has taken GPUs away: all of them are there to be used.
    return replace(snapshot, job_gpus=tuple(gpu.bdf for gpu in snapshot.gpus) if found is None else found)


def _read(path: Path) -> NodeSnapshot:
    """A snapshot from what people have: our recording, `nvidia-smi topo -m`, hwloc's or NCCL's XML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--read: {path} can't be read as text ({error}); give a recording or a printed table"
        ) from error
    snapshot = _parser_for(text)(text)
    if snapshot.job_gpus is None:
        snapshot = replace(snapshot, job_gpus=tuple(gpu.bdf for gpu in snapshot.gpus))
    return snapshot


def _parser_for(text: str) -> Callable[[str], NodeSnapshot]:
    if text.lstrip().startswith("<"):
        return parse_nccl_topology if "<system" in text else parse_hwloc
    if "\nGPU0" in f"\n{text}" or "\tGPU0" in text:
        return lambda table: snapshot_of_topo(parse_topo(table))
    return _parse_recording


def _parse_recording(text: str) -> NodeSnapshot:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--read: neither a recording nor a table we know: {str(error).splitlines()[0]}") from error
    if not isinstance(document, dict):
        raise UserError("--read: neither a recording nor a table we know; `himori probe -o FILE` writes a recording")
    return from_document(document)


def _usual_ranks(snapshot: NodeSnapshot) -> int:
    return len(snapshot.job_gpus or ()) or len(snapshot.cpu_nodes()) or 1


# --------------------------------------------------------------------------- printing


def _print(snapshot: NodeSnapshot, bindings: Sequence[Binding], console: Console) -> None:
    cpus = f"{len(snapshot.online)} CPUs, {len(snapshot.cores)} cores"
    console.print(
        f"{cpus}, {len(snapshot.packages) or 'unknown'} sockets, {len(snapshot.cpu_nodes())} NUMA nodes with CPUs"
    )
    if set(snapshot.allowed) != set(snapshot.online):
        console.print(f"allowed here: {format_ids(snapshot.allowed)}")
    _print_rows(console, ("NUMA", "CPUs", "memory", "free", "distances"), [_node_row(node) for node in snapshot.nodes])
    _print_rows(console, ("GPU", "name", "NUMA"), [_gpu_row(gpu) for gpu in snapshot.gpus])
    _print_rows(console, ("NIC", "bus", "NUMA", "ports"), [_nic_row(nic) for nic in snapshot.nics])
    _print_rows(
        console, ("rank", "GPU", "NUMA", "CPUs", "memory", "NICs", "flags"), [_binding_row(one) for one in bindings]
    )
    for warning in dict.fromkeys(warning for one in bindings for warning in one.warnings):
        console.print(f"warning: {warning}", soft_wrap=True)


def _print_rows(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)


def _node_row(node: NumaNode) -> tuple[str, ...]:
    sizes = (node.memory_total_bytes, node.memory_free_bytes)
    memory = ("unknown" if size is None else f"{size / _GIB:.1f} GiB" for size in sizes)
    return (str(node.id), format_ids(node.cpus) or "none", *memory, " ".join(map(str, node.distances)))


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (gpu.bdf, gpu.name or "", str(gpu.numa_node))


def _nic_row(nic: Nic) -> tuple[str, ...]:
    ports = [
        f"{port.link_layer.value} {'unknown' if port.rate_gbps is None else f'{port.rate_gbps:g}'} Gb/s"
        f"{'' if port.active else ' down'}"
        for port in nic.ports or ()
    ]
    return (nic.name, nic.bdf or "", str(nic.numa_node), ", ".join(ports))


def _binding_row(one: Binding) -> tuple[str, ...]:
    memory = " ".join((one.memory.mode.value, *map(str, one.memory.nodes)))
    home = "unknown" if one.home is None else str(one.home)
    flags = ",".join(flag.value for flag in one.flags)
    return (str(one.rank), one.gpu or "none", home, format_ids(one.cpus), memory, " ".join(one.nics) or "none", flags)


def _as_json(one: Binding) -> dict[str, object]:
    return {
        "rank": one.rank,
        "gpu": one.gpu,
        "home": one.home,
        "cpus": format_ids(one.cpus),
        "memory": {"mode": one.memory.mode.value, "nodes": list(one.memory.nodes)},
        "nics": list(one.nics),
        "flags": [flag.value for flag in one.flags],
        "reasons": {reason.what: reason.why for reason in one.reasons},
        "warnings": list(one.warnings),
    }
