"""Where a verb takes a node from: this machine, or texts that people have of another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cattrs

from pipeline.errors import UserError
from pipeline.hardware.node_texts import NodeText, snapshot_of_texts
from pipeline.hardware.nvml import read_nvml
from pipeline.hardware.snapshot import read_snapshot
from pipeline.hardware.topology import NodeSnapshot
from pipeline.hardware.visibility import visible_gpus
from pipeline.placement.binding import Binding
from pipeline.placement.environment import allowed_before_binding
from pipeline.rundir import from_jsonable

STANDARD_INPUT = Path("-")


def this_node() -> NodeSnapshot:
    """The machine this process runs on, with the GPUs that are its own."""
    snapshot = read_snapshot(allowed=allowed_before_binding(os.environ), nvml=read_nvml())
    found = visible_gpus(snapshot.gpus, os.environ)
    # Outside a job nobody has taken GPUs away: all of them are there to be used.
    return replace(snapshot, job_gpus=tuple(gpu.bdf for gpu in snapshot.gpus) if found is None else found)


def read_node(paths: Sequence[Path]) -> NodeSnapshot:
    """The node that these files are of, or this one without any; raises UserError naming the file that won't do."""
    return snapshot_of_texts(read_texts(paths)) if paths else this_node()


def read_texts(paths: Sequence[Path]) -> list[NodeText]:
    """The files as text, `-` from standard input."""
    return [NodeText(str(path), _text(path)) for path in paths]


def certified_bindings(texts: Sequence[NodeText]) -> tuple[Binding, ...]:
    """Where the ranks of a run were put, if this is a certificate (`binding/<node>.json`); else nothing."""
    for text in texts:
        try:
            ranks = json.loads(text.text)["data"]["ranks"]
            return tuple(from_jsonable(rank["planned"], Binding) for rank in ranks if rank["planned"])
        except (ValueError, KeyError, TypeError, cattrs.BaseValidationError):
            continue
    return ()


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as text ({error}); give a recording or what tools printed") from error
