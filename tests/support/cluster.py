"""The development clusters of slurm/dev, each brought up once for all tests that need it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

REPO = Path(__file__).resolve().parents[2]
DEV = REPO / "slurm" / "dev"
UP_REFUSED = 2

NodeAction = Literal["start", "kill", "killd", "stop", "cont"]


@dataclass(frozen=True, slots=True)
class DevCluster:
    """A running development cluster: how to talk to it and how to break its nodes."""

    state: Path
    """Its state directory. Every node sees what is below, private ones too."""
    env: dict[str, str]
    """Environment for commands that talk to it; nothing of a surrounding Slurm job is left in it."""

    def run(self, *command: str, timeout_s: float = 60) -> str:
        """Standard output of a command; a failing one fails the test with what it printed to standard error."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def node(self, action: NodeAction, name: str) -> None:
        """Break or start node `name`, as `slurm/dev/node.sh` does."""
        self.run(str(DEV / "node.sh"), action, name)

    def wait_for(self, question: Callable[[], bool], *, limit_s: float = 60) -> None:
        """Ask until the answer is yes; fails the test when the time is over."""
        end = time.monotonic() + limit_s
        while not question():
            if time.monotonic() > end:
                pytest.fail(f"not so after {limit_s} s; the cluster's logs are in {self.state / 'log'}")
            time.sleep(0.3)


def skip_or_fail(reason: str) -> None:
    """A developer may lack root or the packages; CI promised them."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(f"CI must be able to run the development cluster: {reason}")


def cluster_env(state: Path) -> dict[str, str]:
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
    return outside | {"STATE": str(state), "SLURM_CONF": str(state / "etc" / "slurm.conf")}


LOOKS = {"n1": "b200x8-6numa", "n2": "h200x8-2numa", "n3": "h100x4-94gb", "n4": "h100x8-uneven"}
"""What the nodes of the second cluster look like."""


def running_cluster() -> Iterator[DevCluster]:
    """Four plain nodes."""
    yield from _running(Path(os.environ.get("STATE", REPO / ".cluster")).resolve(), {})


def cluster_with_looks() -> Iterator[DevCluster]:
    """Nodes that look like GPU servers; without accounting, which takes longer to come up than all the rest."""
    looks = " ".join(f"{node}={look}" for node, look in LOOKS.items())
    knobs = {"NODES": str(len(LOOKS)), "PRIVATE_NODES": "", "DBD": "0", "LOOKS": looks}
    yield from _running(Path(os.environ.get("STATE", REPO / ".cluster")).resolve() / "looked", knobs)


def _running(state: Path, knobs: Mapping[str, str]) -> Iterator[DevCluster]:
    """The cluster that is up already, which stays up, or else one that ends with the caller.

    Without root or the packages the tests that need it are skipped with that reason; in CI they fail.
    """
    env = cluster_env(state)
    up = subprocess.run([DEV / "up.sh"], env=env | knobs, capture_output=True, text=True, check=False)
    if up.returncode == UP_REFUSED:
        skip_or_fail(up.stderr.strip())
    if up.returncode:
        pytest.fail(f"slurm/dev/up.sh failed:\n{up.stdout}{up.stderr}")
    yield DevCluster(state=state, env=env)
    if "already up" not in up.stdout:
        subprocess.run([DEV / "down.sh"], env=env, capture_output=True, check=True)
