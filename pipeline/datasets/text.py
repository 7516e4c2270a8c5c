"""The text a run is trained on: any text files, read as bytes, each byte a token."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.errors import DataError

_NAMES_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Everything that was read, in order."""

    source: str
    """The file or folder it came from."""
    tokens: npt.NDArray[np.uint8]
    digest: bytes
    """Equal for equal tokens."""
    skipped: tuple[str, ...]
    """Files of a folder that were left out, each with its reason."""

    def describe_skipped(self) -> str | None:
        """One line about what was left out, or None when nothing was."""
        if not self.skipped:
            return None
        return f"data.path: {self.source}: skipped {len(self.skipped)} files: {_some(self.skipped)}"


def read_corpus(path: str | None) -> Corpus:
    """Reads a file, a folder of files in sorted order, or, for None, text of the Python standard library.

    Raises DataError naming the path when there is no text in it.
    """
    if path is None:
        return _read_standard_library()
    source = Path(path)
    try:
        is_folder = stat.S_ISDIR(source.stat().st_mode)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.path: {_shown(source)} can't be read ({_reason(error)}); name a file or folder"
        ) from None
    return _read_files(source, _walk(source)) if is_folder else _read_single(source)


def _read_standard_library() -> Corpus:
    """The language reference that `help()` shows; distributions that leave it out have at least modules in Python."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        library = Path(sysconfig.get_path("stdlib"))
        return _read_files(library, ((path, None) for path in sorted(library.glob("*.py"))))
    return _corpus("pydoc_data.topics", "".join(topics.values()).encode(), ())


def _read_single(source: Path) -> Corpus:
    content = _read_text(source)
    if isinstance(content, str):
        raise DataError(f"data.path: {_shown(source)} can't be trained on ({content})")
    if not content:
        raise DataError(f"data.path: {_shown(source)} is empty")
    return _corpus(_shown(source), content, ())


def _read_files(source: Path, found: Iterable[tuple[Path, str | None]]) -> Corpus:
    parts: list[bytes] = []
    skipped: list[str] = []
    for path, problem in found:
        content = problem or _read_text(path)
        if isinstance(content, str):
            skipped.append(f"{_shown(path.relative_to(source))} ({content})")
        else:
            parts.append(content)
    if not any(parts):
        seen = f"{len(parts)} empty files, {len(skipped)} skipped"
        raise DataError(f"data.path: no text in {_shown(source)}: {seen}" + (": " + _some(skipped) if skipped else ""))
    return _corpus(_shown(source), b"".join(parts), tuple(skipped))


def _walk(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Files below a folder in sorted order, and folders that can't be listed, with the reason."""
    unlisted: list[OSError] = []
    for root, folders, files in os.walk(folder, onerror=unlisted.append):
        folders.sort()
        yield from ((Path(root, name), None) for name in sorted(files))
    yield from ((Path(error.filename), _reason(error)) for error in unlisted)


def _read_text(path: Path) -> bytes | str:
    """The file's bytes, or why they are no text. Opening a pipe or a device could block for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a regular file"
        content = path.read_bytes()
    except OSError as error:
        return _reason(error)
    return "binary" if b"\0" in content else content


def _corpus(source: str, content: bytes, skipped: tuple[str, ...]) -> Corpus:
    return Corpus(
        source=source,
        tokens=np.frombuffer(content, dtype=np.uint8),
        digest=hashlib.blake2b(content, digest_size=16).digest(),
        skipped=skipped,
    )


def _shown(path: Path) -> str:
    """The path as text that can always be printed, whatever bytes its name holds."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
