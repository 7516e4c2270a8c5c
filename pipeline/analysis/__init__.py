"""Runs side by side: what they were, what can be said of one against another, and whether a night was slower.

For notebooks: `from pipeline.analysis import runs_frame, curves_frame, compare, answers_frame`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.analysis.frames import answers_frame, compare, curves_frame, runs_frame

__all__ = ["answers_frame", "compare", "curves_frame", "runs_frame"]


def __getattr__(name: str) -> object:
    """The notebook's functions, loaded when asked for: pandas has no business in a command line that starts at once."""
    if name in __all__:
        return getattr(importlib.import_module("pipeline.analysis.frames"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
