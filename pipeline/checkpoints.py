"""Checkpoints of a run on disk: their names and manifests, which one is whole, which may go (standard library only).

`checkpoints/step-00000040/` is complete: it was written under a temporary name, made durable, listed with sizes and
digests in its manifest, and only then renamed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RunDirError
from pipeline.rundir import RunDir, read_json, write_json
from pipeline.types import Layout

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = re.compile(r"\.step-\d{8,}\.(attempt-(?P<attempt>\d+)|removed)\.tmp")
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of a checkpoint."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint holds; written last, so a directory without it is no checkpoint."""

    run_id: str
    attempt: int
    step: int
    """Optimizer steps that were done."""
    consumed_samples: int
    """Samples that were trained on: with the seed, where the data goes on."""
    seed: int
    data_digest: str
    """Of what was read and how it was cut and blended: on other data there is nothing to go on with."""
    layout: Layout
    """Of the ranks that wrote it; ranks of another layout can load it."""
    megatron_core: str
    time: float
    """Seconds since the epoch."""
    files: tuple[StoredFile, ...]

    @property
    def bytes(self) -> int:
        """Size of the whole checkpoint."""
        return sum(file.bytes for file in self.files)


def checkpoints_dir(run: RunDir) -> Path:
    """Where the checkpoints of a run are."""
    return run.path / "checkpoints"


def checkpoint_path(run: RunDir, step: int) -> Path:
    """A complete checkpoint."""
    return checkpoints_dir(run) / f"step-{step:08d}"


def temporary_path(run: RunDir, step: int, attempt: int) -> Path:
    """A checkpoint that is being written."""
    return checkpoints_dir(run) / f".step-{step:08d}.attempt-{attempt}.tmp"


def steps_on_disk(run: RunDir) -> list[int]:
    """Steps of which there is a directory of a checkpoint, whole or not, newest first."""
    folder = checkpoints_dir(run)
    names = [_NAME.fullmatch(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(name[1]) for name in names if name), reverse=True)


def read_manifest(run: RunDir, step: int) -> Manifest:
    """Raises RunDirError saying why when a checkpoint is not whole: a file is missing or of another size."""
    path = checkpoint_path(run, step)
    try:
        manifest = read_json(path / MANIFEST, Manifest)
    except OSError as error:
        raise RunDirError(f"{path.name} has no manifest ({error.strerror})") from error
    for file in manifest.files:
        try:
            size = (path / file.name).stat().st_size
        except OSError as error:
            raise RunDirError(f"{path.name}: {file.name} is missing ({error.strerror})") from error
        if size != file.bytes:
            raise RunDirError(f"{path.name}: {file.name} has {size} bytes, {file.bytes} were written")
    return manifest


def newest_whole(run: RunDir) -> Manifest | None:
    """The newest checkpoint whose files are all there with their sizes; None when there is none."""
    for step in steps_on_disk(run):
        try:
            return read_manifest(run, step)
        except RunDirError:
            continue
    return None


def digest(path: Path) -> StoredFile:
    """Size and SHA-256 of a file, made durable on the way."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        while chunk := stream.read(_CHUNK_BYTES):
            found.update(chunk)
            size += len(chunk)
    return StoredFile(name=path.name, bytes=size, sha256=found.hexdigest())


def publish(run: RunDir, temporary: Path, manifest: Manifest) -> None:
    """Makes a written checkpoint a complete one; an older one of the same step gives way."""
    write_json(temporary / MANIFEST, manifest)
    _sync_directory(temporary)
    final = checkpoint_path(run, manifest.step)
    if final.exists():
        _remove(final)
    temporary.rename(final)
    _sync_directory(final.parent)


def superfluous(steps: Iterable[int], *, keep_last: int, keep_every: int) -> list[int]:
    """Which of these whole checkpoints retention gives up; never the newest. `keep_every` 0 keeps none for good."""
    newest_first = sorted(steps, reverse=True)
    kept = set(newest_first[: max(1, keep_last)])
    return [step for step in newest_first if step not in kept and not (keep_every and step % keep_every == 0)]


def prune(run: RunDir, *, keep_last: int, keep_every: int, attempt: int) -> list[int]:
    """Removes superfluous checkpoints of this run and what earlier attempts left half-written; returns their steps.

    Only what himori wrote for this run is touched: a directory without a manifest of this run stays, and so does one
    that isn't whole, for people to look at.
    """
    whole = []
    for step in steps_on_disk(run):
        try:
            manifest = read_manifest(run, step)
        except RunDirError:
            continue
        if manifest.run_id == run.run_id:
            whole.append(step)
    gone = superfluous(whole, keep_last=keep_last, keep_every=keep_every)
    for step in gone:
        _remove(checkpoint_path(run, step))
    _remove_leftovers(run, attempt)
    return gone


def free_bytes(run: RunDir) -> int:
    """Space left for this user where checkpoints go."""
    return shutil.disk_usage(run.path).free


def _remove_leftovers(run: RunDir, attempt: int) -> None:
    for entry in checkpoints_dir(run).iterdir():
        name = _TEMPORARY.fullmatch(entry.name)
        if name and (name["attempt"] is None or int(name["attempt"]) < attempt):
            shutil.rmtree(entry, ignore_errors=True)


def _remove(path: Path) -> None:
    """Takes the name away first: a removal that is cut short leaves nothing that looks like a checkpoint."""
    doomed = path.with_name(f".{path.name}.removed.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share_of(files: Sequence[StoredFile], rank: int, ranks: int) -> list[StoredFile]:
    """The files that one of `ranks` ranks verifies: large ones are dealt out first."""
    return sorted(files, key=lambda file: (-file.bytes, file.name))[rank::ranks]
