"""Names of all files of sweeps, and the claims by which no point runs twice.

    RUN_ROOT/sweeps/<sweep-id>/sweep.json                      what was asked: every point, those left out with reason
    RUN_ROOT/sweeps/<sweep-id>/batches/<batch-id>/batch.json   points submitted together, as one job array at most
    RUN_ROOT/points/<point>.<n>                                the n-th try of a point, made by whoever was first

A sweep's id names the set of its points, so asking the same again finds the same sweep.
"""

from __future__ import annotations

import datetime
import getpass
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RunDirError, RunNotFound, UserError
from pipeline.rundir import from_jsonable, read_json, read_optional, slug, to_jsonable, write_json
from pipeline.types import Handle


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPoint:
    """One point of a sweep as it is kept."""

    number: int
    digest: str
    """What names the point wherever it is asked for."""
    choices: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """One point that is not run, and why."""

    number: int
    choices: dict[str, str]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What was asked."""

    sweep_id: str
    name: str
    keys: tuple[str, ...]
    overrides: tuple[str, ...]
    """As typed: by them the sweep is submitted again."""
    conf_dir: str | None
    code: str
    """Digest of the code the points run."""
    created_at: float
    points: tuple[SweepPoint, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A point in a batch, and the run that was made for it."""

    digest: str
    run_id: str
    tries: int
    """Which try of the point the run is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Points that were submitted together."""

    sweep_id: str
    members: tuple[Member, ...]
    """In the order of the array's indices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Who makes which run of a point."""

    run_id: str
    sweep_id: str
    user: str
    boot_id: str
    pid: int
    start_ticks: int
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PointOf:
    """In a run's directory: which point it is."""

    sweep_id: str
    sweep_name: str
    number: int
    digest: str
    choices: dict[str, str]


@dataclass(frozen=True, slots=True)
class BatchDir:
    """`sweeps/<sweep-id>/batches/<batch-id>`."""

    path: Path

    @property
    def batch_file(self) -> Path:
        """Who is in it; written before it is submitted."""
        return self.path / "batch.json"

    @property
    def handle_file(self) -> Path:
        """The launcher's name for the whole; written once every member has its handle."""
        return self.path / "handle.json"

    @property
    def released_file(self) -> Path:
        """Present once the batch was let go: what is held afterwards, somebody else holds."""
        return self.path / "released.json"

    def read(self) -> Batch | None:
        """Its members, or None before they were decided."""
        return read_optional(self.batch_file, Batch)

    def read_handle(self) -> Handle | None:
        """Its handle, or None before submission was complete."""
        return read_optional(self.handle_file, Handle)


@dataclass(frozen=True, slots=True)
class SweepDir:
    """`sweeps/<sweep-id>`."""

    path: Path

    @property
    def sweep_id(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def run_root(self) -> Path:
        """The folder its runs lie in."""
        return self.path.parent.parent

    @property
    def sweep_file(self) -> Path:
        """What was asked."""
        return self.path / "sweep.json"

    @property
    def mlflow_file(self) -> Path:
        """The parent run in MLflow; owned by `pipeline.tracking`."""
        return self.path / "mlflow.json"

    def read(self) -> Sweep:
        """What was asked; raises RunDirError."""
        return read_json(self.sweep_file, Sweep)

    def batches(self) -> Iterator[BatchDir]:
        """The batches there are, oldest first."""
        folder = self.path / "batches"
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        return (BatchDir(folder / name) for name in names)

    def new_batch(self) -> BatchDir:
        """Makes the directory of a batch; a name already taken is never reused."""
        while True:
            path = self.path / "batches" / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return BatchDir(path)


def sweep_dir(run_root: Path, name: str, digest: str) -> SweepDir:
    """The directory of a set of points; not created."""
    return SweepDir(run_root / "sweeps" / f"{slug(name)}-{digest}")


def keep_sweep(folder: SweepDir, sweep: Sweep) -> None:
    """Writes what was asked, once: who asks the same again finds it."""
    try:
        if not folder.sweep_file.exists():
            write_json(folder.sweep_file, sweep)
    except OSError as error:
        raise UserError(
            f"run_root: {folder.run_root} can't be written ({error.strerror}); name another with run_root=DIR"
        ) from error


def list_sweeps(run_root: Path) -> list[SweepDir]:
    """Sweeps of a run root, the newest last."""
    folder = run_root / "sweeps"
    found = [SweepDir(path) for path in folder.iterdir() if (path / "sweep.json").exists()] if folder.is_dir() else []
    return sorted(found, key=lambda sweep: sweep.sweep_file.stat().st_mtime)


def find_sweep(run_root: Path, wanted: str) -> SweepDir:
    """The sweep with this id, path, unique beginning or ending of an id; `last` is the newest.

    Raises RunNotFound naming what there is.
    """
    if Path(wanted).is_dir() and (Path(wanted) / "sweep.json").exists():
        return SweepDir(Path(wanted).resolve())
    sweeps = list_sweeps(run_root)
    if wanted == "last" and sweeps:
        return sweeps[-1]
    found = [sweep for sweep in sweeps if sweep.sweep_id == wanted] or [
        sweep for sweep in sweeps if sweep.sweep_id.startswith(wanted) or sweep.sweep_id.endswith(wanted)
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sweep.sweep_id for sweep in (found or sweeps[::-1])[:5]) or "none"
    if found:
        raise RunNotFound(f"sweep {wanted!r} is not unique: {names}; give more of the id")
    raise RunNotFound(f"no sweep {wanted!r} in {run_root}; there are: {names}; see `himori sweep status`")


# --------------------------------------------------------------------------- claims


@dataclass(frozen=True, slots=True)
class Claims:
    """`points/`: who was first to run a point."""

    path: Path

    def tries(self, digests: Iterable[str]) -> dict[str, int]:
        """How often each of these points was claimed, those that were at all."""
        wanted = set(digests)
        found: dict[str, int] = {}
        for name in os.listdir(self.path) if self.path.is_dir() else []:  # noqa: PTH208 - names only, of ten thousands
            digest, _, number = name.partition(".")
            if digest in wanted and number.isdigit():
                found[digest] = max(found.get(digest, 0), int(number))
        return found

    def read(self, digest: str, number: int) -> Claim | None:
        """A claim; None when its file is empty since whoever made it was killed before the next system call."""
        try:
            document = json.loads((self.path / f"{digest}.{number}").read_bytes() or b"null")
        except ValueError as error:
            raise RunDirError(f"{self.path}/{digest}.{number}: can't be read: {error}") from error
        return from_jsonable(document, Claim) if document else None

    def take(self, digest: str, number: int, claim: Claim) -> bool:
        """Claims a try of a point; False when somebody else did."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(to_jsonable(claim))
        try:
            descriptor = os.open(self.path / f"{digest}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        return True

    def age_s(self, digest: str, number: int) -> float:
        """Seconds since a claim was made."""
        return time.time() - (self.path / f"{digest}.{number}").stat().st_mtime


def claims_of(run_root: Path) -> Claims:
    """The claims of a run root."""
    return Claims(run_root / "points")


def own_claim(run_id: str, sweep_id: str, *, boot_id: str, start_ticks: int) -> Claim:
    """A claim of this process."""
    return Claim(
        run_id=run_id,
        sweep_id=sweep_id,
        user=getpass.getuser(),
        boot_id=boot_id,
        pid=os.getpid(),
        start_ticks=start_ticks,
        time=time.time(),
    )
