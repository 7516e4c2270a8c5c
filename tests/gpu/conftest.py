"""Lets tests on a GPU use the tiny experiment of the unit tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "training"))
