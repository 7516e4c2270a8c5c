"""Without torch: plan and submit work, and a run says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BLOCK = """
import sys
for name in ("torch", "megatron"):
    sys.modules[name] = None
"""


def test_a_run_without_torch_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pipeline", "run", "experiment=demo", f"run_root={tmp_path / 'runs'}"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 5
    assert "torch is not installed" in done.stdout
    assert "himori[train]" in done.stdout
