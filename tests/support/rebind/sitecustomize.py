"""Breaks a binder on purpose: on PYTHONPATH, workers move after they were put in their place.

REBIND_CPUS=RANK takes other CPUs, REBIND_MEMORY=RANK another memory policy.
"""

import ctypes
import os
import sys

SET_MEMPOLICY, MPOL_INTERLEAVE = 238, 3

if "pipeline.training" in sys.orig_argv and "RANK" in os.environ:
    if os.environ.get("REBIND_CPUS") == os.environ["RANK"]:
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - mine or {min(mine)})
    if os.environ.get("REBIND_MEMORY") == os.environ["RANK"]:
        ctypes.CDLL(None).syscall(SET_MEMPOLICY, MPOL_INTERLEAVE, ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))
