"""Where the tracking store is, who may write it, and the locks that keep its writers apart."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.errors import TrackingError, UserError
from pipeline.rundir import RunDir
from pipeline.tracking.provenance import boot_id, read_provenance

# File systems that another machine can see too, as the kernel names them; every fuse.* is taken for one.
NETWORK_FILESYSTEMS = frozenset(
    {
        "9p", "acfs", "afs", "autofs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "cvfs", "dvs", "exafs",
        "gfs2", "glusterfs", "gpfs", "ibrix", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
        "prl_fs", "pvfs2", "quobyte", "smb3", "smbfs", "snfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
    }
)  # fmt: skip

_LOCK_POLL_S = 0.1
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}


@dataclass(frozen=True, slots=True)
class Store:
    """A tracking store."""

    uri: str
    """What MLflow is given; a sqlite path in it is absolute."""
    database: Path | None
    """The sqlite file; None for a server."""

    @property
    def artifact_location(self) -> str | None:
        """Where artifacts of a new experiment go; None: the server decides."""
        return None if self.database is None else os.fspath(self.database.parent / "mlartifacts")


def resolve_store(uri: str | None, run_root: Path) -> Store:
    """The store a `tracking.uri` means for the runs of `run_root`; None is `mlflow.db` in the run root.

    Raises UserError for a folder (MLflow retired that), a relative sqlite path and credentials in the URI.
    """
    if uri is None:
        database = run_root.absolute() / "mlflow.db"
        return Store(f"sqlite:///{database}", database)
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        raise UserError(f"tracking.uri: {uri!r} is a folder; give http(s)://HOST:PORT, sqlite:////FILE or null")
    if parts.password or (parts.username and parts.scheme in ("http", "https")):
        raise UserError(
            f"tracking.uri: the URI of {parts.hostname} holds credentials, which would be written into every run; "
            "put it into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or ~/.mlflow/credentials"
        )
    if parts.scheme.partition("+")[0] != "sqlite":
        return Store(uri, None)
    database = Path(uri.partition(":///")[2])
    if not database.is_absolute():
        raise UserError(f"tracking.uri: {uri!r} is relative; write the path out, as in sqlite:////data/mlflow.db")
    return Store(uri, database)


def store_of(run: RunDir) -> Store:
    """The store of a run, by its configuration; raises UserError and RunDirError."""
    return resolve_store(run.read_experiment().tracking.uri, run.path.parent)


def sync_here(run: RunDir, *, in_job: bool) -> bool:
    """Whether this process may write the run's store: a job writes sqlite only on a disk of the submitting machine."""
    store = store_of(run)
    if not in_job or store.database is None:
        return True
    provenance = read_provenance(run)
    same_machine = provenance is not None and provenance.boot_id == boot_id()
    return same_machine and not is_network_filesystem(store.database.parent)


def is_network_filesystem(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether `path`, which need not exist, lies on a file system that other machines can see."""
    kind = filesystem_type(path.resolve(), mountinfo.read_text(encoding="utf-8", errors="surrogateescape"))
    return kind in NETWORK_FILESYSTEMS or kind.startswith("fuse.")


def filesystem_type(path: Path, mountinfo: str) -> str:
    """Type of the file system of an absolute path: that of the longest mount point above it, the last one mounted."""
    found, kind = Path("/"), ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = Path(_unescape(before.split(" ")[4]))
        if path.is_relative_to(mount_point) and mount_point.is_relative_to(found):
            found, kind = mount_point, after.split(" ")[0]
    return kind


def _unescape(field: str) -> str:
    """Blanks, tabs, newlines and backslashes of a mount point, which the kernel writes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


@contextmanager
def file_lock(path: Path, left_s: Callable[[], float]) -> Iterator[None]:
    """Holds an exclusive lock on a file, made if need be; it goes with the process that holds it.

    Raises TrackingError when it can't be written or another process still holds it once `left_s` is down to 0.
    Where the file system has no locks (Lustre mounted without flock), nothing is held: what it guards is safe to
    repeat.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TrackingError(f"{path} can't be written: {error.strerror}") from error
    try:
        while not _try_lock(descriptor):
            if left_s() <= 0:
                raise TrackingError(f"{path} is held by another process; try again later")
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True
