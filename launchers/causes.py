"""Of what kind a failure was, from exit codes, last lines and the scheduler's word (pure).

Every pattern has a line from a real log in `tests/unit/launchers/failure_lines.yaml`, with its source.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from launchers.messages import Stop, StopCause
from pipeline.types import Cause, RankExit, WorkerCode

KERNEL_OOM = "the kernel killed a process of this node for lack of memory"
"""What a supervisor adds to the last lines of a worker that died while the kernel's counter of such kills went up."""

_BY_CODE: dict[int, Cause] = {
    WorkerCode.user_error: Cause.user_error,
    WorkerCode.refused: Cause.user_error,
    WorkerCode.numerics: Cause.numerics,
    WorkerCode.hardware: Cause.gpu_fault,
    WorkerCode.network: Cause.network,
}

_BY_STOP = {
    StopCause.node_lost: Cause.node_failure,
    StopCause.leader_lost: Cause.node_failure,
    StopCause.rank_lost: Cause.unknown,
    StopCause.not_complete: Cause.unknown,
    StopCause.cancelled: Cause.cancelled,
    StopCause.timeout: Cause.timeout,
    StopCause.preempted: Cause.preempted,
    StopCause.hang: Cause.hang,
}

_BY_SCHEDULER = {
    "NODE_FAIL": Cause.node_failure,
    "BOOT_FAIL": Cause.node_failure,
    "OUT_OF_MEMORY": Cause.host_oom,
    "TIMEOUT": Cause.timeout,
    "DEADLINE": Cause.timeout,
    "PREEMPTED": Cause.preempted,
    "CANCELLED": Cause.cancelled,
}

_PATTERNS = (
    # GPU faults first: they are followed by errors of every other kind. XIDs after NVIDIA's catalogue: 48, 63, 64, 94
    # and 95 are ECC, 74 NVLink, 79 fallen off the bus, 92 many single-bit errors, 119, 120 and 140 the GSP and ECC.
    (Cause.gpu_fault, r"NVRM: Xid \([^)]*\): (?:48|62|63|64|74|79|92|94|95|119|120|140|143)\b"),
    (
        Cause.gpu_fault,
        r"uncorrectable (?:NVLink|ECC) error|[Ff]allen off the bus|Unable to determine the device handle",
    ),
    (Cause.cuda_oom, r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"),
    (Cause.cuda_oom, r"CUBLAS_STATUS_ALLOC_FAILED"),
    (Cause.host_oom, r"DefaultCPUAllocator: (?:can't|not enough)|^(?:numpy\.\S*)?_?(?:Array)?MemoryError\b"),
    (Cause.host_oom, r"Cannot allocate memory|oom[-_]kill event|Out Of Memory|exceeded (?:job )?memory limit"),
    (Cause.host_oom, re.escape(KERNEL_OOM)),
    (Cause.hang, r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)"),
    (Cause.network, r"nccl(?:System|Remote)Error|NCCL WARN NET/IB\w* ?: ?Got completion .*(?:status|error)[ =]12\b"),
    (Cause.network, r"IBV_WC_RETRY_EXC_ERR|No route to host|Network is unreachable|Connection (?:refused|timed out)"),
    (Cause.numerics, r"found NaN in (?:local )?grad norm|Unexpected result nan"),
    (Cause.user_error, r"^(?:ModuleNotFound|Import|Syntax|FileNotFound|Permission)Error: "),
)
_COMPILED = tuple((cause, re.compile(pattern, re.MULTILINE)) for cause, pattern in _PATTERNS)


def cause_of_lines(lines: Iterable[str]) -> Cause | None:
    """What the last lines of a process tell of its cause; None: nothing that is known."""
    text = "\n".join(line.strip() for line in lines)
    return next((cause for cause, pattern in _COMPILED if pattern.search(text)), None)


def cause_of_exit(seen: RankExit) -> Cause:
    """Of what kind one worker's own failure was."""
    by_code = _BY_CODE.get(seen.exit_code) if seen.exit_code is not None else None
    by_lines = cause_of_lines(seen.tail)
    if by_code is not None:
        return by_code
    if by_lines is not None:
        return by_lines
    if seen.signal == signal.SIGBUS:  # memory that went away below it: a full /dev/shm, mostly
        return Cause.host_oom
    return Cause.unknown


def cause_of(first: RankExit | None, stops: Sequence[Stop], scheduler_word: str, *, lost_a_peer: bool) -> Cause:
    """Of what kind the end of an attempt was that did not finish.

    `first` is the rank that failed by itself, if one did; `lost_a_peer` says that all it complains of is another rank.
    """
    if first is not None:
        found = cause_of_exit(first)
        if found is not Cause.unknown:
            return found
        if lost_a_peer and not stops:
            return Cause.network
    known = [_BY_STOP[stop.cause] for stop in stops if stop.cause in _BY_STOP]
    by_stop = next((cause for cause in known if cause is not Cause.unknown), None)
    if by_stop is not None:
        return by_stop
    if lost_a_peer:
        return Cause.network
    return _BY_SCHEDULER.get(scheduler_word, Cause.unknown)
