"""Which config groups and options there are, by looking at the folders (standard library only)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path


def shipped_conf_dir() -> Path:
    """The folder of `conf/` as installed."""
    return Path(str(resources.files("conf")))


def options(group: str, folders: Sequence[Path] | None = None) -> list[str]:
    """The options of a config group, sorted."""
    searched = folders if folders is not None else [shipped_conf_dir()]
    return sorted({path.stem for folder in searched for path in (folder / group).glob("*.yaml")})


NO_GROUPS = frozenset({"suite"})
"""Folders whose files name requests rather than belong to one."""


def groups(folders: Sequence[Path] | None = None) -> list[str]:
    """The config groups there are, sorted."""
    searched = folders if folders is not None else [shipped_conf_dir()]
    return sorted({path.parent.name for folder in searched for path in folder.glob("*/*.yaml")} - NO_GROUPS)
