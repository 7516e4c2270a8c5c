"""Calibrations on disk: the one that is shipped, and those people fitted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import yaml

from pipeline.conf_groups import shipped_conf_dir
from pipeline.errors import ConfigError
from pipeline.planning.calibration import UNCALIBRATED, Calibration, from_document, to_document

FOLDER = "calibrations"
"""Where a run root keeps the calibrations fitted to its runs."""
PUBLIC = "public"
NONE = UNCALIBRATED.version
"""Names that always exist: the shipped calibration, and no calibration at all."""
# The C parser reads the file in a few milliseconds, the Python one in tens.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[0-9a-f]{8})?")


def shipped_calibration() -> Calibration:
    """The calibration fitted to public runs (docs/validation.md)."""
    return read_calibration(shipped_conf_dir() / "hardware" / "calibration" / "public.yaml")


def find_calibration(name: str, run_root: Path) -> Calibration:
    """The calibration a configuration names; raises ConfigError naming those there are."""
    if name == PUBLIC:
        return shipped_calibration()
    if name == NONE:
        return UNCALIBRATED
    path = calibration_path(name, run_root)
    if not path.is_file():
        known = sorted(one.stem for one in (run_root / FOLDER).glob("*.yaml"))
        raise ConfigError(
            f"calibration={name}: no {path}; there are: {', '.join([PUBLIC, NONE, *known])}; "
            f"`himori calibrate -o {name}` makes one from runs"
        )
    return read_calibration(path)


def calibration_path(name: str, run_root: Path) -> Path:
    """The file of a calibration: a path that ends in .yaml is itself, a name lies in the run root."""
    if name.endswith(".yaml"):
        return Path(name)
    if name in (PUBLIC, NONE) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"calibration {name!r}: give letters, digits, dots, dashes (not {PUBLIC} or {NONE}), or a path that "
            "ends in .yaml"
        )
    return run_root / FOLDER / f"{name}.yaml"


def read_calibration(path: Path) -> Calibration:
    """A calibration from a file; raises ConfigError naming the file when it isn't one."""
    try:
        return from_document(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not a calibration ({error}); give one that `himori calibrate` wrote") from error


def versioned(calibration: Calibration, name: str) -> Calibration:
    """The calibration with a version that says what is in it: `name@` and eight digits of its content's hash."""
    content = json.dumps({**to_document(calibration), "version": ""}, sort_keys=True)
    return dataclasses.replace(calibration, version=f"{name}@{hashlib.sha256(content.encode()).hexdigest()[:8]}")


def write_calibration(path: Path, calibration: Calibration, comment: str) -> None:
    """Writes a calibration with a comment on top."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + yaml.safe_dump(to_document(calibration), sort_keys=False, width=110), encoding="utf-8")
