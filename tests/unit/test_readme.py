"""What the README tells people to type can be typed: each request in it plans."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.cli import HIMORI

README = Path(__file__).parents[2] / "README.md"
REQUEST = re.compile(r"^    himori (?:plan|run|submit) (.*?)(?: +#.*)?$", re.M)
REQUESTS = REQUEST.findall(README.read_text(encoding="utf-8"))


def test_there_are_requests() -> None:
    assert len(REQUESTS) > 5


@pytest.mark.parametrize("arguments", sorted(set(REQUESTS)))
def test_a_request_of_the_readme_plans(arguments: str, tmp_path: Path) -> None:
    typed = shlex.split(os.path.expandvars(arguments))
    done = subprocess.run(
        [*HIMORI, "plan", *typed], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "planned only" not in done.stdout
