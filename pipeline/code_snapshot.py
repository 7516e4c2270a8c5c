"""The code a job will run, kept by its content: what was submitted is what runs, whatever becomes of the checkout.

It is the three packages as they are now: in a checkout what git tracks, changed or not, and what it does not ignore;
of an installed himori all of their files.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError

PACKAGES = ("pipeline", "launchers", "conf")
MAX_MIB = 64
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """himori's own code as it is."""

    root: Path
    """The folder the packages lie in."""
    files: tuple[str, ...]
    """Paths below `root`, sorted."""
    digest: str
    """16 hexadecimal digits of a SHA-256 over names, contents and execute bits."""

    def folder(self, run_root: Path) -> Path:
        """Where its snapshot lies in a run root."""
        return run_root / "code" / self.digest


def read_code(root: Path | None = None) -> Code:
    """Reads the code below `root`, by default this very himori; nothing is written.

    Raises UserError when it is too large to be code.
    """
    root = root or Path(__file__).resolve().parents[1]
    files = _tracked(root)
    if files is None:
        files = list(_walked(root))
    _check_size(root, files)
    digest = hashlib.sha256()
    for name in files:
        path = root / name
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name}\0{os.access(path, os.X_OK)}\0{content}\n".encode())
    return Code(root=root, files=tuple(files), digest=digest.hexdigest()[:16])


def kept_code(digest: str, run_root: Path) -> Code:
    """Code that a run root keeps already; raises UserError when it is gone or was changed."""
    folder = run_root / "code" / digest
    code = read_code(folder) if folder.is_dir() else None
    if code is None or code.digest != digest:
        raise UserError(f"the code snapshot {folder} is gone or was changed; submit again from the code as it is now")
    return code


def keep_code(code: Code, run_root: Path) -> Path:
    """The folder of its snapshot, made if it is not there yet; one of half the files is never seen."""
    folder = code.folder(run_root)
    if folder.is_dir():
        return folder
    making = folder.with_name(f".{code.digest}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        for name in code.files:
            target = making / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(code.root / name, target)
        if read_code(making).digest != code.digest:
            raise UserError(f"{code.root}: files changed while they were copied; submit again")
        making.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # another process may have been faster
            raise UserError(f"the code snapshot {folder} can't be written: {error.strerror}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _tracked(root: Path) -> list[str] | None:
    """What git tracks or doesn't ignore of the packages; None where they are no part of a checkout."""
    command = ["git", "--no-optional-locks", "-C", os.fspath(root), "ls-files", "-z", "--cached"]
    try:
        tracked = _git([*command, "--error-unmatch", "pipeline/code_snapshot.py"])
        listed = _git([*command, "--others", "--exclude-standard", "--", *PACKAGES]) if tracked is not None else None
    except (OSError, subprocess.TimeoutExpired):
        return None
    if listed is None:
        return None
    return sorted({name for name in listed.split("\0") if name and (root / name).is_file()})


def _git(command: Sequence[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _walked(root: Path) -> Iterator[str]:
    found = (path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file())
    yield from sorted(str(path.relative_to(root)) for path in found if "__pycache__" not in path.parts)


def _check_size(root: Path, files: Sequence[str]) -> None:
    sizes = {name: (root / name).stat().st_size for name in files}
    total_mib = sum(sizes.values()) / 2**20
    if total_mib > MAX_MIB:
        largest = ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:3])
        raise UserError(
            f"{root}: its packages hold {total_mib:.0f} MiB, more than the {MAX_MIB} MiB a code snapshot may have; "
            f"move the largest away or have git ignore them: {largest}"
        )
