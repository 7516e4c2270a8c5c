"""The nodes of this folder: real machines in the compact snapshot format, each with the binding it should get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.hardware.recording import from_document
from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.policy import LocalRank

NODES = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parent / "nodes").glob("*.yaml"))
}


def snapshot_of(name: str) -> NodeSnapshot:
    """The recorded node."""
    return from_document(NODES[name]["snapshot"])


def expected_ranks(name: str) -> Sequence[Mapping[str, Any]]:
    """What each local rank should get."""
    ranks: Sequence[Mapping[str, Any]] = NODES[name]["expect"]["ranks"]
    return ranks


def local_ranks(count: int) -> list[LocalRank]:
    """Ranks of one node, which is the first of its job."""
    return [LocalRank(local_rank=i, rank=i) for i in range(count)]
