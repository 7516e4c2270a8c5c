"""Calibrations on disk: the one that is shipped, and those people fitted."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipeline.conf_groups import shipped_conf_dir
from pipeline.errors import ConfigError
from pipeline.planning.calibration import Calibration, from_document, to_document

# The C parser reads the file in a few milliseconds, the Python one in tens.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shipped_calibration() -> Calibration:
    """The calibration fitted to public runs (docs/validation.md)."""
    return read_calibration(shipped_conf_dir() / "hardware" / "calibration" / "public.yaml")


def read_calibration(path: Path) -> Calibration:
    """A calibration from a file; raises ConfigError naming the file when it isn't one."""
    try:
        return from_document(yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not a calibration ({error}); give one that `himori calibrate` wrote") from error


def write_calibration(path: Path, calibration: Calibration, comment: str) -> None:
    """Writes a calibration with a comment on top."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + yaml.safe_dump(to_document(calibration), sort_keys=False, width=110), encoding="utf-8")
