"""Reads small files of /sys and /proc below a root directory, which may be a recording of another machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.hardware.topology import Ids, TopologyError, parse_ids


@dataclass(frozen=True, slots=True)
class Tree:
    """A file system as seen from `root`; what isn't there or can't be read is None, not an error."""

    root: Path

    def path(self, name: str) -> Path:
        """Where an absolute path lies below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The file's content without white space around it."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """The file's content as a decimal number; None also where it is something else."""
        text = self.text(name)
        return int(text) if text is not None and text.removeprefix("-").isdigit() else None

    def ids(self, name: str) -> Ids | None:
        """The file's content as a list of ids.

        Raises TopologyError naming the file when it is something else.
        """
        text = self.text(name)
        try:
            return None if text is None else parse_ids(text)
        except TopologyError as error:
            raise TopologyError(f"{self.path(name)}: {error}") from error

    def names(self, name: str) -> list[str]:
        """Entries of a directory, sorted; none where there is no such directory."""
        try:
            return sorted(entry.name for entry in self.path(name).iterdir())
        except OSError:
            return []

    def target(self, name: str) -> tuple[str, ...] | None:
        """Parts of the path a symbolic link leads to in the end; None where there is nothing."""
        path = self.path(name)
        return path.resolve().parts if path.exists() else None
