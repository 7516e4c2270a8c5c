"""Copies of indexed datasets on a node's own disk: one a node, checked, made once, and only ever our own removed.

A copy lies in DIR/himori-DIGEST, where a file of ours says that it is whole. Whoever reads it holds a shared lock on
that file; when room is needed, copies that nobody holds give way, oldest first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.datasets.indexed import bin_file, idx_file
from pipeline.datasets.manifest import digest_of, manifest_file, read_manifest
from pipeline.datasets.samples import fingerprint
from pipeline.errors import DataError, RunDirError
from pipeline.rundir import read_json, write_json

_MARK = "himori-staged.json"
_PREFIX = "himori-"
_CHUNK_BYTES = 1 << 24
_RESERVE_BYTES = 1 << 30
"""Stays free: other users of the node's disk have to write too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedFiles:
    """What our mark in a copy's folder says."""

    source: str
    bytes: int
    digests: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A copy that this process may read until it ends."""

    prefix: str
    """Of the copy, in place of that of the source."""
    bytes: int
    seconds: float
    """That copying took; 0 where a copy was there already."""
    held: int
    """Descriptor of the lock that keeps the copy from being removed, until it is closed or the process ends."""


def stage(prefix: str, folder: Path) -> Staged:
    """The copy of a dataset on this node, made by the first process that asks; the others wait for it.

    Raises DataError when there is no room, or when the copy isn't what the source is.
    """
    target = folder / f"{_PREFIX}{fingerprint(prefix).hex()}"
    began = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            made = _read_mark(target) is None
            if made:
                _make_room(folder, sum(path.stat().st_size for path in _sources(prefix)))
                _copy(prefix, target)
            held = os.open(target / _MARK, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_SH)
    except OSError as error:
        raise DataError(f"data.stage_dir: {folder}: {prefix} can't be copied there ({error.strerror})") from error
    return Staged(
        prefix=str(target / Path(prefix).name),
        bytes=sum(path.stat().st_size for path in _sources(prefix)),
        seconds=time.perf_counter() - began if made else 0.0,
        held=held,
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of the node at a time; a process that dies lets go."""
    with (folder / f".{_PREFIX}lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _sources(prefix: str) -> list[Path]:
    return [bin_file(prefix), idx_file(prefix)]


def _read_mark(target: Path) -> StagedFiles | None:
    try:
        return read_json(target / _MARK, StagedFiles)
    except (FileNotFoundError, RunDirError):
        return None


def _copy(prefix: str, target: Path) -> None:
    """Copies both files, reads them back, and marks the folder as whole."""
    if target.exists():  # a copy that was broken off; nothing else has our name
        shutil.rmtree(target)
    target.mkdir()
    manifest, digests = read_manifest(prefix), {}
    known = {} if manifest is None else {".bin": manifest.bin_digest, ".idx": manifest.idx_digest}
    for source in _sources(prefix):
        copy = target / source.name
        read = _copy_file(source, copy)
        if read != known.get(source.suffix, read):
            raise DataError(f"{source}: digest {read}, its manifest says {known[source.suffix]}; the file was changed")
        if digest_of(copy) != read:
            raise DataError(f"{copy}: differs from {source}; the disk of this node is not to be trusted")
        digests[source.name] = read
    if manifest is not None:
        shutil.copyfile(manifest_file(prefix), manifest_file(str(target / Path(prefix).name)))
    size = sum(path.stat().st_size for path in _sources(prefix))
    write_json(target / _MARK, StagedFiles(source=prefix, bytes=size, digests=digests))


def _copy_file(source: Path, copy: Path) -> str:
    """Copies a file; the digest of what was read."""
    digest = hashlib.blake2b(digest_size=16)
    with source.open("rb") as read, copy.open("wb") as written:
        while chunk := read.read(_CHUNK_BYTES):
            digest.update(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
        # What is read back has to come from the disk, not from memory.
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _make_room(folder: Path, needed: int) -> None:
    """Removes copies of ours that nobody holds until there is room; raises DataError when that isn't enough."""
    marks = sorted(folder.glob(f"{_PREFIX}*/{_MARK}"), key=lambda path: path.stat().st_mtime)
    for mark in marks:
        if _free(folder) >= needed + _RESERVE_BYTES:
            return
        with mark.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(mark.parent)
    if (free := _free(folder)) < needed + _RESERVE_BYTES:
        raise DataError(
            f"data.stage_dir: {folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB and a reserve of "
            f"{_RESERVE_BYTES / 1e9:.1f} GB are needed; name another folder, or leave it out"
        )


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
