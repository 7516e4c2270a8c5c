"""probe cluster=NAME: what the nodes of a cluster are, each seen by itself from inside a job, and where they differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hostlist
import yaml
from rich.console import Console
from rich.table import Table

from launchers.probing import Answers, NodeRequest, expand, probe_nodes
from pipeline.config import Loaded, load
from pipeline.errors import ConfigError, UserError
from pipeline.hardware.recording import anonymous, from_document, to_document
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.drift import Comparison, drift
from pipeline.placement.unlike_nodes import Kinds, kinds_of
from pipeline.rundir import to_jsonable, write_text
from pipeline.types import HardwareProfile, LauncherKind

_NODELIST = "nodelist="

Drifts = Mapping[str, tuple[Comparison, ...]]
"""Where each node is not what the profile expects."""


def probe_cluster(arguments: argparse.Namespace) -> int:
    """Probes nodes through their scheduler and compares them; exits with 3 when not all of them answered."""
    if arguments.read or arguments.draw:
        raise UserError("--read, --draw: for one node only; leave KEY=VALUE away, or save with -o and draw that file")
    loaded = load([one for one in arguments.overrides if not one.startswith(_NODELIST)])
    request = _request(loaded, arguments.overrides)
    answers = probe_nodes(
        loaded.experiment.cluster,
        request,
        arguments=_passed_on(arguments),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    snapshots = {node: _snapshot(node, document) for node, document in answers.documents.items()}
    kinds = kinds_of(snapshots)
    profile = loaded.experiment.hardware if "hardware" in loaded.named_groups else None
    drifts = {node: drift(profile, snapshot) if profile else () for node, snapshot in snapshots.items()}
    if arguments.output:
        _save(arguments.output, snapshots)
    if arguments.json:
        print(json.dumps(_document(answers, kinds, profile, drifts), indent=1))
    else:
        _print(answers, snapshots, kinds)
        if profile:
            _print_drift(profile.name, drifts)
    if answers.failure:
        print(f"himori: {len(answers.documents)} of {request.count} nodes answered: {answers.failure}", file=sys.stderr)
    return 3 if answers.failure else 0


def _request(loaded: Loaded, overrides: Sequence[str]) -> NodeRequest:
    experiment = loaded.experiment
    if experiment.cluster.launcher is LauncherKind.local:
        raise ConfigError(
            "cluster: this probes nodes through a scheduler; give cluster=NAME of a Slurm cluster, "
            "or no KEY=VALUE at all to look at this machine"
        )
    lists = [one.removeprefix(_NODELIST) for one in overrides if one.startswith(_NODELIST)]
    if len(lists) > 1 or (lists and experiment.nodes is not None):
        raise ConfigError("nodelist: give it once, and not together with nodes=")
    count = len(set(expand(lists[0]))) if lists else 1 if experiment.nodes is None else experiment.nodes
    if count < 1:
        raise ConfigError(f"nodes: got {count}, must be at least 1")
    return NodeRequest(nodelist=lists[0] if lists else None, count=count, gpus=experiment.hardware.gpus_per_node)


def _passed_on(arguments: argparse.Namespace) -> list[str]:
    ranks = [] if arguments.ranks is None else ["--ranks", str(arguments.ranks)]
    return ["--policy", arguments.policy, *ranks]


def _snapshot(node: str, document: Mapping[str, Any]) -> NodeSnapshot:
    try:
        return from_document(document["snapshot"])
    except (KeyError, UserError) as error:
        raise UserError(f"{node}: another himori answered there ({error}); nodes need the version that asks") from error


def _save(folder: Path, snapshots: Mapping[str, NodeSnapshot]) -> None:
    """A file a node: its name is outside only, serial numbers nowhere."""
    for node, snapshot in snapshots.items():
        text = yaml.safe_dump(to_document(anonymous(snapshot)), sort_keys=False, width=110)
        write_text(folder / f"{node}.yaml", text)


def _document(answers: Answers, kinds: Kinds, profile: HardwareProfile | None, drifts: Drifts) -> dict[str, Any]:
    return {
        "nodes": answers.documents,
        "profile": profile.name if profile else None,
        "drift": {node: to_jsonable(rows) for node, rows in drifts.items()} if profile else None,
        "kinds": [list(names) for names in kinds.nodes],
        "differences": [{"what": row.what, "values": list(row.values)} for row in kinds.differences],
        "failure": answers.failure,
    }


# --------------------------------------------------------------------------- printing


def _print(answers: Answers, snapshots: Mapping[str, NodeSnapshot], kinds: Kinds) -> None:
    console = _console()
    headings = ("node", "CPUs", "cores", "NUMA", "GPUs", "NICs", "allowed CPUs", "binding")
    rows = [
        _node_row(node, snapshot, answers.documents[node].get("bindings", [])) for node, snapshot in snapshots.items()
    ]
    _print_rows(console, headings, rows)
    console.print()
    names = [_names(nodes) for nodes in kinds.nodes]
    if len(names) == 1:
        console.print(f"{names[0]}: {'all alike' if len(snapshots) > 1 else 'one node, nothing to compare it with'}")
    else:
        console.print(f"{len(names)} kinds of nodes; they differ in")
        _print_rows(console, ("", *names), [(row.what, *row.values) for row in kinds.differences])
    for warning in _warnings(answers.documents):
        console.print(f"warning: {warning}", soft_wrap=True)


def _print_drift(profile: str, drifts: Drifts) -> None:
    console = _console()
    about: dict[Comparison, list[str]] = {}
    for node, rows in drifts.items():
        for row in rows:
            about.setdefault(row, []).append(node)
    console.print()
    if not about:
        console.print(f"nothing differs from profile {profile}")
        return
    console.print(f"not as profile {profile} expects")
    headings = ("nodes", "", "expected", "found")
    _print_rows(console, headings, [(_names(nodes), row.what, row.expected, row.found) for row, nodes in about.items()])


def _console() -> Console:
    return Console(highlight=False, markup=False)


def _node_row(node: str, snapshot: NodeSnapshot, bindings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    gpus = ", ".join(sorted({gpu.name or "GPU" for gpu in snapshot.gpus}))
    flags = sorted({flag for binding in bindings for flag in binding.get("flags", [])})
    return (
        node,
        str(len(snapshot.online)),
        str(len(snapshot.cores)),
        str(len(snapshot.cpu_nodes())),
        f"{len(snapshot.gpus)} x {gpus}" if gpus else "none",
        str(len(snapshot.nics)),
        str(len(snapshot.allowed)),
        ",".join(flags) or "no ranks",
    )


def _names(nodes: Sequence[str]) -> str:
    return str(hostlist.collect_hostlist(nodes))


def _warnings(documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each warning of the binder once, with its nodes."""
    nodes: dict[str, list[str]] = {}
    for node, document in documents.items():
        for warning in {text for one in document.get("bindings", []) for text in one.get("warnings", [])}:
            nodes.setdefault(warning, []).append(node)
    return [f"{_names(about)}: {warning}" for warning, about in sorted(nodes.items())]


def _print_rows(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
