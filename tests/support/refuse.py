"""Runs a command whose system calls of some numbers fail with EPERM, as in a container with a strict profile.

`python refuse.py 238,239 COMMAND ARG...`; children inherit it. x86-64 only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """The kernel's sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main() -> None:
    """Installs the filter, then becomes the command."""
    numbers = [int(number) for number in sys.argv[1].split(",")]
    steps = [(LOAD_WORD, 0, 0, 0)]  # the number is the first field of what a filter sees
    for number in numbers:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
