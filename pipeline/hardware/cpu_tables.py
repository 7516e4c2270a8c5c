"""Reads the text of `lscpu` and `numactl -H`; what is cut or can't be told from it is refused, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.hardware.topology import Ids, NumaNode, TopologyError, format_ids, parse_ids

_LSCPU_NODE = re.compile(r"NUMA node(\d+) CPU\(s\)")
_NUMACTL_NODE = re.compile(r"node (\d+) (cpus|size|free):\s*(.*)")
_NUMACTL_ROW = re.compile(r"\s*(\d+):((?:\s+\d+)+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTable:
    """The CPUs of a machine."""

    nodes: tuple[NumaNode, ...]
    cores: tuple[Ids, ...]
    packages: tuple[Ids, ...]


def parse_lscpu(text: str) -> CpuTable:
    """Reads the summary of `lscpu`.

    It doesn't list siblings: they are told from how the nodes' CPUs are numbered, where only one way fits.
    Raises TopologyError naming the line that is missing or contradicts another.
    """
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    nodes = _lscpu_nodes(fields)
    online = tuple(sorted(cpu for node in nodes for cpu in node.cpus))
    threads, sockets = _count(fields, "Thread(s) per core"), _count(fields, "Socket(s)")
    cores = sockets * _count(fields, "Core(s) per socket")
    if len(online) > cores * threads or (len(online) < cores * threads and "On-line CPU(s) list" not in fields):
        raise TopologyError(f"lscpu: {len(online)} CPUs in NUMA nodes, but {cores} cores of {threads} threads")
    return CpuTable(
        nodes=nodes, cores=_cores(nodes, online, cores=cores, threads=threads), packages=_packages(nodes, sockets)
    )


def parse_numactl(text: str) -> tuple[NumaNode, ...]:
    """Reads `numactl -H`: nodes with CPUs, memory and distances.

    Raises TopologyError naming the line that is missing or malformed.
    """
    lines = text.splitlines()
    header = next((match for line in lines if (match := re.match(r"available: (\d+) nodes? \((.*)\)", line))), None)
    if header is None:
        raise TopologyError("numactl: no line 'available: N nodes'")
    ids = parse_ids(header[2])
    if len(ids) != int(header[1]):
        raise TopologyError(f"numactl: {header[0]!r}: the list has {len(ids)} nodes")
    values = {(int(m[1]), m[2]): m[3] for line in lines if (m := _NUMACTL_NODE.fullmatch(line.strip()))}
    distances = _numactl_distances(lines, ids)
    return tuple(_numactl_node(node, values, distances[node]) for node in ids)


def with_memory(table: CpuTable, nodes: Sequence[NumaNode]) -> CpuTable:
    """The CPUs of `lscpu` with what `numactl` adds: memory, distances and nodes without CPUs.

    Raises TopologyError when the two disagree about a node.
    """
    known = {node.id: node.cpus for node in table.nodes}
    for node in nodes:
        if known.get(node.id, ()) != node.cpus:
            mine, theirs = format_ids(known.get(node.id, ())), format_ids(node.cpus)
            raise TopologyError(f"node {node.id}: CPUs {mine} by lscpu, {theirs} by numactl")
    if missing := set(known) - {node.id for node in nodes}:
        raise TopologyError(f"numactl doesn't have node {min(missing)} of lscpu")
    return replace(table, nodes=tuple(nodes))


def _count(fields: Mapping[str, str], key: str) -> int:
    if not fields.get(key, "").isdigit():
        raise TopologyError(f"lscpu: no line '{key}' with a number: the text is cut")
    return int(fields[key])


def _lscpu_nodes(fields: Mapping[str, str]) -> tuple[NumaNode, ...]:
    found = {int(match[1]): value for key, value in fields.items() if (match := _LSCPU_NODE.fullmatch(key))}
    expected = _count(fields, "NUMA node(s)")
    if len(found) != expected:
        raise TopologyError(f"lscpu: {len(found)} lines 'NUMA nodeN CPU(s)' for {expected} NUMA nodes: the text is cut")
    nodes = tuple(NumaNode(id=node, cpus=parse_ids(found[node])) for node in sorted(found))
    listed = parse_ids(fields.get("On-line CPU(s) list", ""))
    cpus = tuple(sorted(cpu for node in nodes for cpu in node.cpus))
    if listed and listed != cpus:
        raise TopologyError(f"lscpu: CPUs {format_ids(listed)} are online, NUMA nodes have {format_ids(cpus)}")
    return nodes


def _cores(nodes: Sequence[NumaNode], online: Ids, *, cores: int, threads: int) -> tuple[Ids, ...]:
    """Siblings are a stride apart (x86 servers) or neighbours; a node in several ranges speaks for the stride."""
    if threads == 1:
        return tuple((cpu,) for cpu in online)
    strided = [tuple(range(first, cores * threads, cores)) for first in range(cores)]
    neighbours = [tuple(range(first, first + threads)) for first in range(0, cores * threads, threads)]
    in_ranges = all("," in format_ids(node.cpus) for node in nodes if node.cpus)
    if _fits(strided, nodes) and (in_ranges or not _fits(neighbours, nodes)):
        return _online_part(strided, online)
    if _fits(neighbours, nodes) and not _fits(strided, nodes):
        return _online_part(neighbours, online)
    raise TopologyError("lscpu: which CPUs are siblings can't be told from this summary; record the node instead")


def _online_part(cores: Sequence[Ids], online: Ids) -> tuple[Ids, ...]:
    parts = (tuple(cpu for cpu in core if cpu in online) for core in cores)
    return tuple(part for part in parts if part)


def _fits(way: Sequence[Ids], nodes: Sequence[NumaNode]) -> bool:
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    return all(len({node_of[cpu] for cpu in core if cpu in node_of}) <= 1 for core in way)


def _packages(nodes: Sequence[NumaNode], sockets: int) -> tuple[Ids, ...]:
    """Nodes are numbered socket by socket; none where they don't divide."""
    with_cpus = [node for node in nodes if node.cpus]
    if len(with_cpus) % sockets:
        return ()
    per = len(with_cpus) // sockets
    groups = [with_cpus[i * per : (i + 1) * per] for i in range(sockets)]
    return tuple(tuple(sorted(cpu for node in group for cpu in node.cpus)) for group in groups)


def _numactl_node(node: int, values: Mapping[tuple[int, str], str], distances: tuple[int, ...]) -> NumaNode:
    for what in ("cpus", "size", "free"):
        if (node, what) not in values:
            raise TopologyError(f"numactl: no line 'node {node} {what}': the text is cut")
    return NumaNode(
        id=node,
        cpus=parse_ids(",".join(values[node, "cpus"].split())),
        memory_total_bytes=_megabytes(node, "size", values),
        memory_free_bytes=_megabytes(node, "free", values),
        distances=distances,
    )


def _megabytes(node: int, what: str, values: Mapping[tuple[int, str], str]) -> int:
    match = re.fullmatch(r"(\d+) MB", values[node, what])
    if match is None:
        raise TopologyError(f"numactl: 'node {node} {what}: {values[node, what]}' is no number of MB")
    return int(match[1]) * 2**20


def _numactl_distances(lines: Sequence[str], ids: Ids) -> dict[int, tuple[int, ...]]:
    rows = {int(m[1]): tuple(map(int, m[2].split())) for line in lines if (m := _NUMACTL_ROW.fullmatch(line))}
    for node in ids:
        if len(rows.get(node, ())) != len(ids):
            raise TopologyError(f"numactl: no row of {len(ids)} distances for node {node}: the text is cut")
    return rows
