"""Applies a binding to this very process: CPUs first, then memory, each as far as the kernel lets it."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.hardware.memory_policy import set_policy

APPLIED = "HIMORI_APPLIED"
"""Variable in which a worker finds what was applied and what was refused, as JSON."""


def apply_binding(options: Mapping[str, Any]) -> dict[str, Any]:
    """Applies `cpus` and `memory` of the shim's options; what came of it, as plain data.

    A refused affinity leaves the process unbound: memory of one node for threads that run anywhere would do harm.
    """
    refused: list[dict[str, str]] = []
    affinity = _set_affinity(options.get("cpus", ()), refused)
    memory = _set_memory(options.get("memory"), refused) if affinity else None
    return {"affinity": affinity, "memory": memory, "refused": refused}


def _set_affinity(cpus: Sequence[int], refused: list[dict[str, str]]) -> bool:
    """Whether the process now has these CPUs; none asked for is none set."""
    if not cpus:
        return False
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        refused.append(_refusal("cpus", f"CPUs {' '.join(map(str, cpus))}", error))
        return False
    return True


def _set_memory(wanted: Mapping[str, Any] | None, refused: list[dict[str, str]]) -> dict[str, Any] | None:
    """The policy that was set: the wanted one, else the next weaker; None: none was."""
    if wanted is None or not wanted["nodes"]:
        return None
    nodes = list(wanted["nodes"])
    # preferred_many needs Linux 5.15; before that only one node can be preferred, and the first is the home.
    choices = [("bind", nodes)] if wanted["mode"] == "bind" else []
    for mode, some in (*choices, ("preferred_many", nodes), ("preferred", nodes[:1])):
        try:
            set_policy(mode, some)
        except OSError as error:
            refused.append(_refusal("memory", f"{mode} {' '.join(map(str, some))}", error))
        else:
            return {"mode": mode, "nodes": some}
    return None


def _refusal(what: str, asked: str, error: OSError) -> dict[str, str]:
    code = error.errno or 0
    return {"what": what, "asked": asked, "error": errno.errorcode.get(code, str(code))}
