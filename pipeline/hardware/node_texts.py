"""One snapshot from the texts people have of a node: told apart by what stands in them, joined where they complete
each other, refused where they don't."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import yaml

from pipeline.hardware.cpu_tables import CpuTable, parse_lscpu, parse_numactl, with_memory
from pipeline.hardware.hwloc_xml import parse_hwloc
from pipeline.hardware.nccl_xml import parse_nccl_topology
from pipeline.hardware.recording import from_document
from pipeline.hardware.table_snapshot import snapshot_of_cpus, snapshot_of_topo
from pipeline.hardware.tables import parse_topo
from pipeline.hardware.topology import NodeSnapshot, TopologyError

T = TypeVar("T")


class Format(Enum):
    """What a text of a node may be, as it is called in messages."""

    recording = "a recording"
    topo = "nvidia-smi topo -m"
    lscpu = "lscpu"
    numactl = "numactl -H"
    hwloc = "hwloc XML"
    nccl = "NCCL topology XML"


@dataclass(frozen=True, slots=True)
class NodeText:
    """A text and where it comes from."""

    name: str
    """For messages: a path, or `-`."""
    text: str


def snapshot_of_texts(texts: Sequence[NodeText]) -> NodeSnapshot:
    """The node that the texts are of: one that tells all, or `nvidia-smi topo -m`, `lscpu`, `numactl -H` together.

    One text may hold several of the latter. GPUs count as the job's unless a recording says otherwise.
    Raises TopologyError naming the text that is cut, malformed, unknown or doesn't go with another.
    """
    found = _sorted_out(texts)
    alone = next((form for form in (Format.recording, Format.hwloc, Format.nccl) if form in found), None)
    if alone is not None and len(found) > 1:
        other = next(form for form in found if form is not alone)
        raise TopologyError(f"{found[alone].name} is {alone.value}, which tells all: leave out {found[other].name}")
    snapshot = _of_tables(found) if alone is None else _parsed(found[alone], _WHOLE[alone])
    if snapshot.job_gpus is None:
        snapshot = replace(snapshot, job_gpus=tuple(gpu.bdf for gpu in snapshot.gpus))
    return snapshot


def is_recording(texts: Sequence[NodeText]) -> bool:
    """Whether a node is known from our own recording rather than from what other tools print."""
    return list(_sorted_out(texts)) == [Format.recording]


def _sorted_out(texts: Sequence[NodeText]) -> dict[Format, NodeText]:
    found: dict[Format, NodeText] = {}
    for text in texts:
        for form in _formats(text):
            if form in found:
                raise TopologyError(f"{found[form].name} and {text.name} are both {form.value}: of one node give one")
            found[form] = text
    return found


def _of_tables(found: Mapping[Format, NodeText]) -> NodeSnapshot:
    if Format.numactl in found and Format.lscpu not in found:
        raise TopologyError(
            f"{found[Format.numactl].name}: numactl -H doesn't say which CPUs are one core; give lscpu's output too"
        )
    cpus = _cpus(found)
    if Format.topo not in found:
        assert cpus is not None
        return snapshot_of_cpus(cpus)
    table = _parsed(found[Format.topo], parse_topo)
    return _parsed(found[Format.topo], lambda _: snapshot_of_topo(table, cpus))


def _cpus(found: Mapping[Format, NodeText]) -> CpuTable | None:
    if Format.lscpu not in found:
        return None
    table = _parsed(found[Format.lscpu], parse_lscpu)
    if Format.numactl not in found:
        return table
    nodes = _parsed(found[Format.numactl], parse_numactl)
    return _parsed(found[Format.numactl], lambda _: with_memory(table, nodes))


def _parsed(text: NodeText, parse: Callable[[str], T]) -> T:
    try:
        return parse(text.text)
    except TopologyError as error:
        raise TopologyError(f"{text.name}: {error}") from error


# --------------------------------------------------------------------------- telling texts apart

_TABLES = {
    Format.topo: re.compile(r"^[ \t]*(?:\x1b?\[[0-9;]*m)*GPU0\b", re.M),
    Format.lscpu: re.compile(r"^\s*(?:Architecture:|CPU\(s\):|NUMA node\d+ CPU\(s\):|Thread\(s\) per core:)", re.M),
    Format.numactl: re.compile(r"^\s*(?:available: \d+ nodes?\b|node \d+ (?:cpus|size|free):|node distances:)", re.M),
}
_OTHER_FORMS = (
    (re.compile(r'^\s*\{\s*"lscpu"'), "lscpu -J", "lscpu"),
    (re.compile(r"^# The following is the parsable format"), "lscpu -p", "lscpu"),
    (re.compile(r"^CPU(?: +(?:NODE|SOCKET|CORE))", re.M), "lscpu -e", "lscpu"),
    (re.compile(r"^(?:physcpubind|nodebind|cpubind):", re.M), "numactl --show", "numactl -H"),
)
"""What looks like it and tells less: its name, and what to give instead."""


def _formats(text: NodeText) -> list[Format]:
    if text.text.lstrip().startswith("<"):
        return [Format.nccl if "<system" in text.text else Format.hwloc]
    for pattern, name, instead in _OTHER_FORMS:
        if pattern.search(text.text):
            raise TopologyError(f"{text.name}: {name} is not read; give the output of plain `{instead}`")
    tables = [form for form, pattern in _TABLES.items() if pattern.search(text.text)]
    return tables or [Format.recording]


def _recording(text: str) -> NodeSnapshot:
    known = ", ".join(form.value for form in Format)
    hint = f"none of what is read ({known}; English output, as with LC_ALL=C); `himori probe -o FILE` makes a recording"
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TopologyError(f"{hint}: {str(error).splitlines()[0]}") from error
    document = _recorded_part(document)
    if not isinstance(document, dict):
        raise TopologyError(hint)
    if "cores" not in document:
        raise TopologyError(f"no key 'cores' as a recording has: {hint}")
    return from_document(document)


def _recorded_part(document: Any) -> Any:
    """A certificate (`binding/<node>.json` of a run) and `probe --json` have the node among other things."""
    for key in ("data", "snapshot"):
        if isinstance(document, dict) and "cores" not in document and key in document:
            document = document[key]
    return document


_WHOLE: Mapping[Format, Callable[[str], NodeSnapshot]] = {
    Format.recording: _recording,
    Format.hwloc: parse_hwloc,
    Format.nccl: parse_nccl_topology,
}
