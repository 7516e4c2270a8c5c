"""probe: what this node is and where ranks would be put, or the same for a recording or a printed table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from pipeline.commands.node_sources import certified_bindings, read_texts, this_node
from pipeline.errors import UserError
from pipeline.hardware.node_texts import snapshot_of_texts
from pipeline.hardware.recording import anonymous, to_document
from pipeline.hardware.topology import Gpu, Nic, NodeSnapshot, NumaNode, format_ids
from pipeline.placement.binding import Binding, bind
from pipeline.placement.policy import BindingPolicy, CpuPolicy, LocalRank
from pipeline.rundir import write_text

_MIB = 1 << 20
_GIB = 1 << 30
_PICTURES = (".svg", ".png")
_TERMINAL = Path("-")


def probe(arguments: argparse.Namespace) -> int:
    """Prints a node; with --output also saves a recording that holds no names of hosts, serial numbers or addresses."""
    if arguments.overrides:
        from pipeline.commands.probe_cluster import probe_cluster

        return probe_cluster(arguments)
    _check_picture(arguments.draw)
    texts = read_texts(arguments.read)
    snapshot = snapshot_of_texts(texts) if texts else this_node()
    certified = certified_bindings(texts) if arguments.ranks is None else ()
    bindings = certified or _bindings(snapshot, arguments)
    if arguments.output:
        write_text(arguments.output, yaml.safe_dump(to_document(anonymous(snapshot)), sort_keys=False, width=110))
    if arguments.json:
        print(
            json.dumps({"snapshot": to_document(snapshot), "bindings": [_as_json(one) for one in bindings]}, indent=1)
        )
    elif arguments.draw is None:
        _print(snapshot, bindings, Console(highlight=False, markup=False))
    if arguments.draw is not None:
        _draw(arguments, snapshot, bindings)
    return 0


def _bindings(snapshot: NodeSnapshot, arguments: argparse.Namespace) -> tuple[Binding, ...]:
    count = arguments.ranks if arguments.ranks is not None else _usual_ranks(snapshot)
    ranks = [LocalRank(local_rank=rank, rank=rank) for rank in range(count)]
    return bind(snapshot, ranks, BindingPolicy(cpus=CpuPolicy(arguments.policy))) if ranks else ()


def _check_picture(path: Path | None) -> None:
    if path not in (None, _TERMINAL) and path.suffix not in _PICTURES:
        raise UserError(f"--draw: {path} must end in {' or '.join(_PICTURES)}; without a file it draws in the terminal")


def _draw(arguments: argparse.Namespace, snapshot: NodeSnapshot, bindings: Sequence[Binding]) -> None:
    """The picture; what draws it is imported only now, since it takes its time."""
    path: Path = arguments.draw
    if path == _TERMINAL:
        from pipeline.analysis.node_text import node_panels

        # With --json standard output is for a machine.
        Console(highlight=False, markup=False, stderr=arguments.json).print(node_panels(snapshot, bindings))
        return
    from pipeline.analysis.node_picture import Theme, node_png, node_svg

    theme = Theme(arguments.theme)
    if path.suffix == ".svg":
        write_text(path, node_svg(snapshot, bindings, theme=theme))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(node_png(snapshot, bindings, theme=theme))
    print(f"drew {path}", file=sys.stderr)


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
    _print_rows(console, ("GPU", "name", "memory", "limit", "NUMA", "here"), [_gpu_row(gpu) for gpu in snapshot.gpus])
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
    memory = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes / _MIB:.0f} MiB"
    limit = "" if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:g} W"
    reach = {True: "yes", False: "no", None: ""}[gpu.is_reachable]
    parts = f" in {len(gpu.mig)} MIG parts" if gpu.mig else ""
    return (gpu.bdf, f"{gpu.name or ''}{parts}", memory, limit, str(gpu.numa_node), reach)


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
