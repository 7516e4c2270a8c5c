"""Where the store is, who may write it, and who waits for whom."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import TrackingError, UserError
from pipeline.rundir import RunDir, write_yaml
from pipeline.tracking.provenance import Provenance, boot_id, write_provenance
from pipeline.tracking.store import file_lock, filesystem_type, is_network_filesystem, resolve_store, sync_here
from pipeline.types import Experiment, Tracking

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/local rw - xfs /dev/vdb rw
32 22 0:42 / /with\040blank rw - lustre mgs:/fs rw
33 22 0:43 / /twice rw - nfs server:/twice rw
34 22 0:44 / /twice rw - tmpfs tmpfs rw
35 22 0:45 / /mnt/ssh rw - fuse.sshfs host:/ rw
36 22 0:46 / /gp rw - gpfs gp rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/var/runs", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/runs", "nfs4", True),
        ("/homestead/runs", "ext4", False),
        ("/home/me/local/runs", "xfs", False),
        ("/with blank/runs", "lustre", True),
        ("/twice/runs", "tmpfs", False),
        ("/mnt/ssh/runs", "fuse.sshfs", True),
        ("/gp/runs", "gpfs", True),
    ],
)
def test_the_longest_mount_point_decides(path: str, kind: str, network: bool, tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS + "\n")
    assert filesystem_type(Path(path), MOUNTS) == kind
    assert is_network_filesystem(Path(path), mountinfo=mountinfo) == network


def test_the_kernels_own_list_is_understood() -> None:
    assert is_network_filesystem(Path("/proc/self")) is False


@pytest.mark.parametrize(
    ("uri", "resolved", "database"),
    [
        (None, "sqlite:////data/runs/mlflow.db", "/data/runs/mlflow.db"),
        ("sqlite:////srv/m.db", "sqlite:////srv/m.db", "/srv/m.db"),
        ("http://host:5000", "http://host:5000", None),
        ("postgresql://me@host/mlflow", "postgresql://me@host/mlflow", None),
    ],
)
def test_a_uri_means_a_store(uri: str | None, resolved: str, database: str | None) -> None:
    store = resolve_store(uri, Path("/data/runs"))
    assert (store.uri, store.database) == (resolved, database and Path(database))
    assert store.artifact_location == (database and str(Path(database).parent / "mlartifacts"))


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("mlruns", "is a folder"),
        ("file:///srv/mlruns", "is a folder"),
        ("sqlite:///m.db", "is relative"),
        ("sqlite://", "is relative"),
        ("http://me:canary-secret@host:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("https://canary-secret@host", "holds credentials"),
        ("postgresql://me:canary-secret@host/mlflow", "holds credentials"),
    ],
)
def test_a_uri_that_can_not_work_is_refused_without_telling_its_password(uri: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        resolve_store(uri, Path("/data/runs"))
    assert "canary-secret" not in str(refused.value)


@pytest.fixture
def run(tmp_path: Path, experiment: Experiment, provenance: Provenance) -> RunDir:
    run = RunDir(tmp_path / "runs" / "r1")
    write_yaml(run.config_file, experiment)
    write_provenance(run, provenance)
    return run


def test_a_job_writes_sqlite_only_on_a_disk_of_the_submitting_host(
    run: RunDir, provenance: Provenance, experiment: Experiment
) -> None:
    write_provenance(run, replace(provenance, boot_id="of-another-machine"))
    assert sync_here(run, in_job=False)
    assert not sync_here(run, in_job=True)
    write_provenance(run, replace(provenance, boot_id=boot_id()))
    assert sync_here(run, in_job=True) == (not is_network_filesystem(run.path))
    run.provenance_file.unlink()
    assert not sync_here(run, in_job=True)
    experiment.tracking = Tracking(name="server", uri="http://host:5000")
    write_yaml(run.config_file, experiment)
    assert sync_here(run, in_job=True)


def countdown(polls: int) -> Callable[[], float]:
    left = iter(range(polls, -1, -1))
    return lambda: float(next(left))


def test_a_lock_is_waited_for_and_goes_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / ".lock"
    code = (
        "import sys, time; from pathlib import Path; from pipeline.tracking.store import file_lock\n"
        "with file_lock(Path(sys.argv[1]), lambda: 1.0): print('held', flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, cwd=root) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TrackingError, match="held by another process"), file_lock(lock, countdown(2)):
            pass
        holder.kill()
        with file_lock(lock, lambda: 10.0):
            pass


def test_a_lock_that_can_not_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(TrackingError, match=r"file/\.lock can't be written"),
        file_lock(tmp_path / "file" / ".lock", lambda: 1.0),
    ):
        pass
