"""A plan answers at once because of what it doesn't load: bounded by modules, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, io, sys
from pipeline.__main__ import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
print(" ".join(sys.modules))
"""
# Each costs a plan more than what it uses of it.
HEAVY = {
    *("torch", "megatron", "mlflow", "numpy", "submitit", "psutil", "rich", "cattrs", "asyncio", "email", "hostlist"),
    *("concurrent.futures", "importlib.metadata", "launchers", "pipeline.training.loop", "pipeline.hardware.snapshot"),
}
MOST = 420
"""Modules of a plan of a GPU profile; it was 582 before the heavy ones were loaded where they are used."""


def modules(*words: str) -> set[str]:
    """What is loaded once a verb is done."""
    command = [sys.executable, "-P", "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("words", [(), ("techniques.recompute=full", "precision=fp8")], ids=str)
def test_a_plan_of_a_gpu_profile_loads_little(words: tuple[str, ...]) -> None:
    loaded = modules("plan", "hardware=sakura_phy_b200", "experiment=llama3_70b", *words)
    assert not HEAVY & loaded
    assert len(loaded) < MOST


def test_completion_loads_no_configuration_at_all() -> None:
    loaded = modules("completion", "bash")
    assert not {"torch", "mlflow", "rich", "hydra", "omegaconf", "pipeline.planning.plan", "pipeline.config"} & loaded
