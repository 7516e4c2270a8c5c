"""What a run was submitted from: state of the code, versions of what it builds on, machine; no secrets."""

from __future__ import annotations

import os
import platform
import pwd
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pipeline.rundir import RunDir, read_json, write_json

DISTRIBUTIONS = (
    "himori",
    "torch",
    "megatron-core",
    "transformer-engine",
    "mlflow",
    "submitit",
    "hydra-core",
)
GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GitState:
    """A git work tree as it was."""

    commit: str | None
    """None before the first commit."""
    branch: str | None
    """None on a detached head."""
    dirty: bool
    """Whether tracked files differ from the commit or files git does not ignore are untracked."""
    remote: str | None
    """URL of `origin` without user and password."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What the code, versions and machine are at submission."""

    time: float
    """Seconds since the epoch."""
    code: GitState | None
    """The repository himori's code lies in; None when it is installed or git is not there."""
    workdir: GitState | None
    """The repository of the working directory, when that is another one."""
    versions: dict[str, str | None]
    """Python and distributions by name; None: not installed here."""
    boot_id: str
    """Names the running kernel: two processes with one boot id are on one machine, whatever it is called there."""
    platform: str
    """Operating system, as it names itself."""
    kernel: str
    snapshot: str = ""
    """Digest of the code snapshot the run runs from."""
    user: str = ""
    """Who submitted, by login name; empty in files that older versions wrote."""


def collect_provenance(cwd: Path, *, code: Path = Path(__file__), snapshot: str = "") -> Provenance:
    """Looks at the code, the working directory and this machine; runs git, imports nothing of what it names."""
    from concurrent.futures import ThreadPoolExecutor  # like importlib.metadata below, slow to load for a plan

    with ThreadPoolExecutor() as pool:
        code_root, cwd_root = pool.map(_tracked_root, (code, cwd))
        other_root = cwd_root if cwd_root != code_root else None
        code_state, cwd_state = pool.map(_git_state, (code_root, other_root))
    uname = os.uname()
    return Provenance(
        time=time.time(),
        code=code_state,
        workdir=cwd_state,
        versions={"python": platform.python_version(), **{name: _version(name) for name in DISTRIBUTIONS}},
        boot_id=boot_id(),
        platform=_operating_system(),
        kernel=f"{uname.sysname} {uname.release} {uname.machine}",
        snapshot=snapshot,
        user=login_name(),
    )


def login_name() -> str:
    """Login name of this process's user, without the domain where it is an e-mail address."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers run under numbers that no passwd file knows
        name = os.environ.get("USER") or str(os.getuid())
    return name.partition("@")[0]


def boot_id() -> str:
    """The kernel's own name for the time since the last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def write_provenance(run: RunDir, provenance: Provenance) -> None:
    """Writes the run's provenance file."""
    write_json(run.provenance_file, provenance)


def read_provenance(run: RunDir) -> Provenance | None:
    """The run's provenance, or None when it was not written; raises RunDirError when it can't be read."""
    try:
        return read_json(run.provenance_file, Provenance)
    except FileNotFoundError:
        return None


def strip_user_info(url: str) -> str:
    """A URL without user and password; the scp form `user@host:path` keeps its user, it holds no password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _tracked_root(path: Path) -> Path | None:
    """Top of the work tree of a folder, or of a file that is tracked in it (a file in a venv is not)."""
    folder = path if path.is_dir() else path.parent
    if folder != path and _git(folder, "ls-files", "--error-unmatch", path.name) is None:
        return None
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def _git_state(root: Path | None) -> GitState | None:
    if root is None:
        return None
    status = _git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=normal")
    if status is None:
        return None
    lines = status.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    remote = _git(root, "config", "--get", "remote.origin.url")
    return GitState(
        commit=_unless(headers.get("branch.oid"), "(initial)"),
        branch=_unless(headers.get("branch.head"), "(detached)"),
        dirty=any(not line.startswith("# ") for line in lines),
        remote=strip_user_info(remote) if remote else None,
    )


def _unless(value: str | None, placeholder: str) -> str | None:
    return None if value == placeholder else value


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None when it is not there, too slow or has nothing to say about the folder."""
    command = ["git", "--no-optional-locks", "-C", os.fspath(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def _version(distribution: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _operating_system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
