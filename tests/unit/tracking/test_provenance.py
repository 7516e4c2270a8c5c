"""What is recorded of code, versions and machine, in real git repositories."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.rundir import RunDir
from pipeline.tracking.provenance import (
    Provenance,
    boot_id,
    collect_provenance,
    read_provenance,
    strip_user_info,
    write_provenance,
)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=trunk")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, a remote with a password in it, and a venv it ignores."""
    folder = tmp_path / "repository"
    (folder / "venv").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "code.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("venv/\n")
    (folder / "venv" / "installed.py").write_text("x = 1\n")
    git(folder, "add", "code.py", ".gitignore")
    git(folder, "commit", "--quiet", "-m", "first")
    git(folder, "remote", "add", "origin", "https://me:canary-secret@example.org/r.git")
    return folder


def collect(code: Path, cwd: Path) -> Provenance:
    return collect_provenance(cwd, code=code)


def test_commit_branch_and_remote_without_password_are_recorded(repository: Path, tmp_path: Path) -> None:
    provenance = collect(repository / "code.py", repository)
    assert provenance.code is not None
    assert provenance.code.commit == git(repository, "rev-parse", "HEAD")
    assert (provenance.code.branch, provenance.code.dirty) == ("trunk", False)
    assert provenance.code.remote == "https://example.org/r.git"
    assert provenance.workdir is None
    run = RunDir(tmp_path / "run")
    write_provenance(run, provenance)
    assert "canary-secret" not in run.provenance_file.read_text()
    assert read_provenance(run) == provenance


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_a_changed_and_a_new_file_make_the_code_dirty(repository: Path, name: str) -> None:
    (repository / name).write_text("x = 2\n")
    state = collect(repository / "code.py", repository).code
    assert state is not None
    assert state.dirty


def test_a_detached_head_has_no_branch_and_a_fresh_repository_no_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "--quiet", "--detach")
    (tmp_path / "fresh").mkdir()
    git(tmp_path / "fresh", "init", "--quiet")
    provenance = collect(repository / "code.py", tmp_path / "fresh")
    assert provenance.code is not None
    assert provenance.code.branch is None
    assert provenance.workdir is not None
    assert (provenance.workdir.commit, provenance.workdir.branch) == (None, "trunk")


def test_code_installed_in_a_venv_inside_a_repository_is_not_of_that_repository(repository: Path) -> None:
    provenance = collect(repository / "venv" / "installed.py", repository)
    assert provenance.code is None
    assert provenance.workdir is not None


def test_outside_a_repository_there_is_no_state(tmp_path: Path) -> None:
    provenance = collect(tmp_path / "code.py", tmp_path)
    assert (provenance.code, provenance.workdir) == (None, None)
    assert provenance.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert provenance.versions["mlflow"] is not None
    assert provenance.boot_id == boot_id()
    assert read_provenance(RunDir(tmp_path)) is None


def test_it_works_without_git_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from pipeline.tracking import channel, feed, journal, provenance, store, view\n"
        "import pipeline.tracking.sync\n"
        "found = provenance.collect_provenance(Path.cwd())\n"
        "print(found.code, sorted({'torch', 'mlflow', 'hydra', 'submitit', 'megatron'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PATH": "/nowhere"}, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None []\n"


def test_it_is_fast(repository: Path) -> None:
    took = []
    for _ in range(5):
        before = time.perf_counter()
        collect(repository / "code.py", repository)
        took.append(time.perf_counter() - before)
    assert min(took) < 0.1


@pytest.mark.parametrize(
    ("url", "stripped"),
    [
        ("https://user:pw@host:8080/r.git", "https://host:8080/r.git"),
        ("https://token@host/r.git", "https://host/r.git"),
        ("https://u:p@q@host/r.git", "https://host/r.git"),
        ("ssh://git@host/r.git", "ssh://host/r.git"),
        ("git@host:r.git", "git@host:r.git"),
        ("/srv/r.git", "/srv/r.git"),
    ],
)
def test_user_and_password_are_stripped_from_urls(url: str, stripped: str) -> None:
    assert strip_user_info(url) == stripped
