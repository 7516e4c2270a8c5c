"""Adds the result of `make validate` to docs/releases.md: commit, machine, versions, counts.

python tests/record_release.py JUNIT_XML DOCUMENT
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

HEADER = """# Validation before releases

Written by `make validate`: all test tiers, faults and soak included.

| date | commit | result | machine | versions |
|---|---|---|---|---|
"""


def main() -> int:
    """Appends one row; the exit code tells whether anything failed."""
    results, document = Path(sys.argv[1]), Path(sys.argv[2])
    suites = ElementTree.parse(results).getroot().findall("testsuite")
    counts = {
        key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    row = " | ".join(
        ["", datetime.date.today().isoformat(), commit(), result(counts), machine(), versions(), ""]
    ).strip()
    text = document.read_text(encoding="utf-8") if document.exists() else HEADER
    document.write_text(f"{text}{row}\n", encoding="utf-8")
    print(row)
    return 1 if counts["failures"] + counts["errors"] else 0


def commit() -> str:
    """Short commit, marked when the tree has changes."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()


def result(counts: dict[str, int]) -> str:
    """Counts in words."""
    bad = counts["failures"] + counts["errors"]
    return f"{counts['tests'] - bad - counts['skipped']} passed, {bad} failed, {counts['skipped']} skipped"


def machine() -> str:
    """Cores and kernel; no names."""
    return f"{os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}"


def versions() -> str:
    """What the tests ran with."""
    names = ("torch", "megatron-core", "mlflow", "submitit")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])


if __name__ == "__main__":
    sys.exit(main())
