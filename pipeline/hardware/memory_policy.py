"""The kernel's memory policy of this process, by the raw system calls: no libnuma and no numactl are needed."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from typing import NamedTuple

MODES = ("default", "preferred", "bind", "interleave", "local", "preferred_many", "weighted_interleave")
"""The kernel's MPOL_ numbers, in order."""

_NUMBERS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""System call numbers of set_mempolicy and get_mempolicy."""
_MASK_BITS = 1024
"""As many nodes as any kernel is built for."""
_WORD_BITS = 64
_FLAGS = 0b111 << 13
"""Flags the kernel returns together with the mode."""


class KernelPolicy(NamedTuple):
    """A memory policy in the kernel's words."""

    mode: str
    """One of MODES."""
    nodes: tuple[int, ...]


def set_policy(mode: str, nodes: Iterable[int]) -> None:
    """Sets the policy of the calling thread, which exec keeps and children inherit; raises OSError when refused."""
    mask = _mask(nodes)
    # The kernel takes one bit less than it is told.
    _call(0, ctypes.c_int(MODES.index(mode)), mask, ctypes.c_ulong(_MASK_BITS + 1))


def get_policy() -> KernelPolicy:
    """The policy of the calling thread; raises OSError when the kernel doesn't say."""
    mode, mask = ctypes.c_int(), _mask(())
    none = ctypes.c_ulong(0)
    _call(1, ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_BITS), none, none)
    number = mode.value & ~_FLAGS
    name = MODES[number] if number < len(MODES) else str(number)
    return KernelPolicy(name, tuple(node for node in range(_MASK_BITS) if _word(mask, node) >> node % _WORD_BITS & 1))


def _word(mask: ctypes.Array[ctypes.c_ulong], node: int) -> int:
    return int(mask[node // _WORD_BITS])


def _mask(nodes: Iterable[int]) -> ctypes.Array[ctypes.c_ulong]:
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    for node in nodes:
        if node >= _MASK_BITS:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return mask


def _call(which: int, *arguments: object) -> None:
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_NUMBERS[machine][which]), *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
