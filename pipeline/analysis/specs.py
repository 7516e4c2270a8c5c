"""Shipped GPUs and models by the names that published tables use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

import yaml

from pipeline.conf_groups import shipped_conf_dir
from pipeline.rundir import from_jsonable
from pipeline.types import GpuSpec, ModelSpec

T = TypeVar("T")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def gpu_named(name: str) -> GpuSpec | None:
    """The GPU of that name, or the only one whose name or file name starts with it."""
    wanted = _plain(name)
    specs = {path.stem: spec for path, spec in _read("hardware/gpu", GpuSpec)}
    exact = [spec for stem, spec in specs.items() if wanted in (_plain(stem), _plain(spec.name))]
    near = [spec for stem, spec in specs.items() if _plain(stem).startswith(wanted)]
    return exact[0] if exact else near[0] if len(near) == 1 else None


def gpu_mentioned(text: str) -> GpuSpec | None:
    """The first GPU whose short name (H100, GB200) is a word of a text."""
    words = {_plain(word) for word in text.split()}
    found = [spec for path, spec in _read("hardware/gpu", GpuSpec) if path.stem.split("_")[0] in words]
    return found[0] if found else None


def model_named(name: str) -> ModelSpec | None:
    """The model of that option name."""
    return next((spec for path, spec in _read("model", ModelSpec) if path.stem == name), None)


@cache
def _read(folder: str, kind: type[T]) -> tuple[tuple[Path, T], ...]:
    paths = sorted((shipped_conf_dir() / folder).glob("*.yaml"))
    return tuple(
        (path, from_jsonable(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER), kind)) for path in paths
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
