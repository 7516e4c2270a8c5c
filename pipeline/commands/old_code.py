"""himori's own code at another commit, for runs that show whether a slowdown came with the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipeline.errors import UserError
from pipeline.tracking.provenance import GitState, collect_provenance

_HERE = Path(__file__).resolve().parent


def code_state() -> GitState:
    """What himori's code is now; without a repository a state without a commit."""
    found = collect_provenance(_HERE).code
    if found is None or found.commit is None:
        return GitState(commit="", branch=None, dirty=False, remote=None)
    return found


def tree_of(commit: str, folder: Path) -> Path:
    """The files of a commit, checked out once under `folder`; raises UserError when the repository hasn't got it."""
    tree = folder.resolve() / commit
    if tree.exists():
        return tree
    command = ["git", "-C", str(_HERE), "worktree", "add", "--detach", "--force", str(tree), commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UserError(f"baseline code {commit[:12]} can't be checked out ({said[-1] if said else 'git failed'}); "
                        "promote a newer night with `himori baseline set`")  # fmt: skip
    return tree
