"""profile: writes a hardware profile from a node, and compares nodes with one."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs
import yaml
from rich.console import Console
from rich.table import Table

from pipeline.commands.node_sources import read_node, read_texts
from pipeline.commands.program import own_name
from pipeline.conf_groups import options, shipped_conf_dir
from pipeline.config import load
from pipeline.errors import UserError
from pipeline.hardware.node_texts import is_recording, snapshot_of_texts
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.drift import Agreement, Comparison, compare_with_profile
from pipeline.placement.new_profile import NewProfile, profile_of
from pipeline.rundir import to_jsonable, write_text
from pipeline.types import Confidence, Evidence, GpuSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DIFFERS, _NOTHING_COMPARED = 4, 8
_HEAD = """\
# {source}
# What is null is not known; numbers that a node can't show (prices, speeds) are for you to add, each with its source.
"""


def new(arguments: argparse.Namespace) -> int:
    """Writes the profile of nodes like this one, to standard output or to a file that isn't there yet."""
    output: Path | None = arguments.output
    name = arguments.name or (output.stem if output else "new_node")
    if not _NAME.fullmatch(name):
        raise UserError(f"--name: {name!r} can't be chosen as hardware=NAME; give letters, digits, _ and -")
    if output and output.stem != name:
        raise UserError(f"-o: {output} must be named {name}.yaml: hardware=NAME finds a profile by its file")
    if output and output.exists():
        raise UserError(f"-o: {output} is there already; name another file, or remove it first")
    snapshot, evidence = _node_and_evidence(arguments.recording)
    made = profile_of(snapshot, name=name, evidence=evidence, known_gpus=_known_gpus(arguments.conf_dir))
    text = _HEAD.format(source=f"{evidence.source[:1].upper()}{evidence.source[1:]}.") + _yaml(made)
    if output is None:
        print(text, end="")
        return 0
    write_text(output, text)
    print(f"wrote {output}", file=sys.stderr)
    print(f"next  {_next_step(output, name)}", file=sys.stderr)
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Prints expectation against node; 0 as expected, 4 where it differs, 8 where nothing could be compared."""
    profile = load([f"hardware={arguments.profile}"], conf_dir=arguments.conf_dir).experiment.hardware
    rows = compare_with_profile(profile, read_node(arguments.recording))
    if arguments.json:
        print(json.dumps({"profile": profile.name, "comparisons": to_jsonable(rows)}, indent=1))
    else:
        _print(profile.name, rows, Console(highlight=False, markup=False))
    return _exit_code(rows)


def _exit_code(rows: Sequence[Comparison]) -> int:
    agreements = {row.agreement for row in rows}
    if Agreement.differs in agreements:
        return _DIFFERS
    return 0 if Agreement.same in agreements else _NOTHING_COMPARED


def _print(name: str, rows: Sequence[Comparison], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in (f"profile {name}", "expected", "found", ""):
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = "bold red" if row.agreement is Agreement.differs else None
        table.add_row(row.what, row.expected, row.found, row.agreement.value, style=style)
    console.print(table)
    differs = sum(row.agreement is Agreement.differs for row in rows)
    compared = differs + sum(row.agreement is Agreement.same for row in rows)
    console.print()
    console.print(f"{differs} of {compared} expectations differ" if compared else "nothing could be compared")


# --------------------------------------------------------------------------- writing


def _node_and_evidence(paths: Sequence[Path]) -> tuple[NodeSnapshot, Evidence]:
    """The node, and what its numbers rest on: what other tools print is one step further away."""
    today = datetime.date.today().isoformat()
    if not paths:
        source = f"read on the node itself by himori profile new, {today}"
        return read_node(paths), Evidence(source=source, confidence=Confidence.high)
    texts = read_texts(paths)
    names = ", ".join(path.name for path in paths)
    if is_recording(texts):
        evidence = Evidence(
            source=f"a node's recording, {names}, read {today}",
            confidence=Confidence.high,
        )
    else:
        evidence = Evidence(
            source=f"what tools printed on a node, {names}, read {today}",
            confidence=Confidence.medium,
        )
    return snapshot_of_texts(texts), evidence


def _known_gpus(conf_dir: Path | None) -> dict[str, GpuSpec]:
    """GPU types by option, those of the user's own folder first."""
    folders = [folder for folder in (conf_dir, shipped_conf_dir()) if folder is not None]
    found: dict[str, GpuSpec] = {}
    for option in options("hardware/gpu", folders):
        path = next(path for folder in folders if (path := folder / "hardware/gpu" / f"{option}.yaml").exists())
        found[option] = _gpu_spec(path)
    return found


def _gpu_spec(path: Path) -> GpuSpec:
    try:
        return cattrs.Converter(forbid_extra_keys=True).structure(yaml.safe_load(path.read_text("utf-8")), GpuSpec)
    except (yaml.YAMLError, cattrs.BaseValidationError, TypeError) as error:
        raise UserError(f"{path}: is no GPU type; it has the keys of conf/hardware/gpu of himori") from error


def _yaml(made: NewProfile) -> str:
    document: dict[str, Any] = to_jsonable(made.profile)
    document.pop("software")
    if made.gpu_option is not None:
        document.pop("gpu_spec")
    document["node_spec"] = _without_prices(document["node_spec"])
    for part in filter(None, (document["node_spec"], document.get("gpu_spec"))):
        part["sources"] = {what: _without_empty_note(evidence) for what, evidence in part["sources"].items()}
    defaults = [f"gpu@gpu_spec: {made.gpu_option}"] if made.gpu_option else []
    head = "".join(f"  - {line}\n" for line in (*defaults, "_self_"))
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return f"defaults:\n{head}\n{body}"


def _without_prices(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if not key.startswith("price_")}


def _without_empty_note(evidence: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in evidence.items() if key != "note" or value}


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, evidence written out each time: files that people go on editing."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _list_on_one_line(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)


_Dumper.add_representer(list, _list_on_one_line)


def _next_step(output: Path, name: str) -> str:
    """How to use the file where it is, if it is where a config group would look for it."""
    if output.resolve().parent.name != "hardware":
        return f"move it to a folder hardware/, then {own_name()} plan --conf-dir FOLDER_ABOVE hardware={name}"
    return f"{own_name()} plan --conf-dir {output.resolve().parent.parent} hardware={name}"
