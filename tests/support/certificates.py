"""Binding certificates as a run leaves them, read without himori's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def certificates(run_dir: Path) -> dict[str, dict[str, Any]]:
    """The certificate of each node of the first attempt."""
    folder = run_dir / "attempts" / "1" / "binding"
    return {path.stem: json.loads(path.read_text())["data"] for path in folder.glob("*.json")}


def ranks_of(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Each rank's part of the certificates."""
    return {rank["rank"]: rank for node in certificates(run_dir).values() for rank in node["ranks"]}


def ids(text: str) -> set[int]:
    """`0-2,5` as numbers."""
    parts = [part.split("-") for part in text.split(",")]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}
