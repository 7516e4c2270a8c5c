"""A node snapshot as compact plain data for YAML or JSON, and back: what a bug report or a test carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.v import format_exception

from pipeline.hardware.topology import (
    Distance,
    Ids,
    Link,
    NodeSnapshot,
    NumaNode,
    TopologyError,
    format_ids,
    parse_ids,
)


def to_document(snapshot: NodeSnapshot) -> dict[str, Any]:
    """The snapshot as mappings, lists, strings and numbers; defaults are left out."""
    document: dict[str, Any] = _converter().unstructure(snapshot)
    document["cores"] = format_cores(snapshot.cores)
    if snapshot.links:
        document["links"] = format_links(snapshot.links)
    return document


def anonymous(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The snapshot without what tells one GPU of the world from another, for files that people pass on."""
    gpus = (
        replace(gpu, uuid=None, mig=tuple(replace(instance, uuid=None) for instance in gpu.mig))
        for gpu in snapshot.gpus
    )
    return replace(snapshot, gpus=tuple(gpus))


def from_document(document: Mapping[str, Any]) -> NodeSnapshot:
    """The inverse of `to_document`, but for the order of links.

    Raises TopologyError naming the key that is wrong.
    """
    if "cores" not in document:
        raise TopologyError("recording: key 'cores' is missing")
    cores = [format_ids(core) for core in parse_cores(document["cores"])]
    links = [
        {"a": link.a, "b": link.b, "distance": link.distance.name} for link in parse_links(document.get("links", []))
    ]
    try:
        return _converter().structure({**document, "cores": cores, "links": links}, NodeSnapshot)
    except cattrs.BaseValidationError as error:
        raise TopologyError("recording: " + "; ".join(cattrs.transform_error(error, format_exception=_say))) from error


def _say(error: BaseException, kind: type | None) -> str:
    return str(error) if isinstance(error, TopologyError) else format_exception(error, kind)


def format_links(links: Iterable[Link]) -> list[str]:
    """Distances of one device in a line: `GPU0 PIX mlx5_0 mlx5_1`."""
    ends: dict[tuple[str, str], list[str]] = {}
    for link in links:
        ends.setdefault((link.a, link.distance.name), []).append(link.b)
    return [" ".join((a, distance, *names)) for (a, distance), names in ends.items()]


def parse_links(lines: Iterable[str]) -> list[Link]:
    """The inverse of `format_links`.

    Raises TopologyError when a line has no known distance.
    """
    links: list[Link] = []
    for line in lines:
        a, distance, *ends = str(line).split() + [""] * 2
        if distance not in Distance.__members__:
            raise TopologyError(f"links {line!r}: expected a device, one of {', '.join(Distance.__members__)}, devices")
        links.extend(Link(a=a, b=end, distance=Distance[distance]) for end in ends if end)
    return links


def format_cores(cores: Iterable[tuple[int, ...]]) -> list[str]:
    """Sibling groups as runs: `0-3/64-67` is four cores, (0, 64) to (3, 67)."""
    runs: list[list[tuple[int, ...]]] = []
    for core in cores:
        if runs and core == tuple(cpu + 1 for cpu in runs[-1][-1]):
            runs[-1].append(core)
        else:
            runs.append([core])
    return ["/".join(format_ids(column) for column in zip(*run, strict=True)) for run in runs]


def parse_cores(runs: Iterable[str]) -> list[tuple[int, ...]]:
    """The inverse of `format_cores`.

    Raises TopologyError when the lists of a run differ in length.
    """
    cores: list[tuple[int, ...]] = []
    for run in runs:
        columns = [parse_ids(column) for column in str(run).split("/")]
        if len({len(column) for column in columns}) != 1:
            raise TopologyError(f"cores {run!r}: the lists between slashes differ in length")
        cores.extend(zip(*columns, strict=True))
    return cores


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, omit_if_default=True)
    converter.register_structure_hook_func(_is_ids, lambda text, _: parse_ids(str(text)))
    converter.register_unstructure_hook_func(_is_ids, format_ids)
    converter.register_structure_hook(Distance, lambda name, _: Distance[name])
    converter.register_unstructure_hook(Distance, lambda distance: distance.name)
    _keep_distances_as_numbers(converter)
    return converter


def _is_ids(kind: Any) -> bool:
    return bool(kind == Ids)


def _keep_distances_as_numbers(converter: cattrs.Converter) -> None:
    """SLIT distances are a tuple of integers too, but no set of ids: order and repetition count."""
    read = make_dict_structure_fn(
        NumaNode,
        converter,
        _cattrs_forbid_extra_keys=True,
        distances=override(struct_hook=lambda numbers, _: tuple(int(number) for number in numbers)),
    )
    write = make_dict_unstructure_fn(
        NumaNode, converter, _cattrs_omit_if_default=True, distances=override(unstruct_hook=list)
    )
    converter.register_structure_hook(NumaNode, read)
    converter.register_unstructure_hook(NumaNode, write)
