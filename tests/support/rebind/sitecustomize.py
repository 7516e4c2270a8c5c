"""Breaks a binder on purpose: on PYTHONPATH, workers move after they were put in their place.

REBIND_CPUS=RANK shifts its CPUs by one, REBIND_MEMORY=RANK interleaves its memory, REBIND_NODE=RANK:NODE prefers that
node, REBIND_NIC=RANK:NAME leads to that NIC.
"""

import ctypes
import os
import sys

SET_MEMPOLICY, MPOL_INTERLEAVE, MPOL_PREFERRED_MANY = 238, 3, 5


def wish(name: str) -> str | None:
    """What is wished for this rank; None: nothing."""
    rank, _, value = os.environ.get(name, "").partition(":")
    return value if rank == os.environ["RANK"] else None


def set_policy(mode: int, node: int) -> None:
    ctypes.CDLL(None).syscall(SET_MEMPOLICY, mode, ctypes.byref(ctypes.c_ulong(1 << node)), ctypes.c_ulong(64))


if "pipeline.training" in sys.orig_argv and "RANK" in os.environ:
    if wish("REBIND_CPUS") is not None:
        os.sched_setaffinity(0, {(cpu + 1) % (os.cpu_count() or 1) for cpu in os.sched_getaffinity(0)})
    if wish("REBIND_MEMORY") is not None:
        set_policy(MPOL_INTERLEAVE, 0)
    if (node := wish("REBIND_NODE")) is not None:
        set_policy(MPOL_PREFERRED_MANY, int(node))
    if (nic := wish("REBIND_NIC")) is not None:
        os.environ["UCX_NET_DEVICES"] = f"{nic}:1"
