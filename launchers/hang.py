"""Who is late: told from what each rank was doing, whether it answers, and where its stack is (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launchers.messages import Look

_COLLECTIVE = re.compile(r"distributed_c10d\.py|p2p_communication\.py|distributed/nn/functional\.py")
_TOP_FRAMES = 4


def late_ranks(looks: Sequence[Look]) -> list[Look]:
    """The ranks that the others wait for; empty where all wait in a collective and none is behind.

    One that does not answer a signal is stopped or stuck in the kernel; one that is some steps behind holds the others
    up; of ranks in one step, those not in a collective do.
    """
    silent = [look for look in looks if not look.stack]
    if silent and len(silent) < len(looks):
        return silent
    least = min(look.step for look in looks)
    behind = [look for look in looks if look.step == least]
    if len(behind) < len(looks):
        return behind
    elsewhere = [look for look in looks if not in_collective(look.stack)]
    return elsewhere if len(elsewhere) < len(looks) else []


def in_collective(stack: Sequence[str]) -> bool:
    """Whether a stack, newest frame first, waits for other ranks."""
    return any(_COLLECTIVE.search(frame) for frame in stack[:_TOP_FRAMES])


def describe_hang(looks: Sequence[Look]) -> str:
    """One line for people."""
    late = late_ranks(looks)
    waiting = len(looks) - len(late)
    if not late:
        longest = max(looks, key=lambda look: look.silent_s)
        return f"no rank has gone on for {longest.silent_s:.0f} s: all wait for each other in step {longest.step}"
    shown = "; ".join(_describe(look) for look in late[:4]) + (f" and {len(late) - 4} more" if len(late) > 4 else "")
    return f"{shown}; {waiting} ranks wait"


def _describe(look: Look) -> str:
    where = look.stack[0].strip() if look.stack else f"does not answer (process state {look.process_state or 'gone'})"
    doing = look.doing.replace("_", " ")
    who = f"rank {look.rank} on {look.node} is late in step {look.step} ({doing})"
    return f"{who}, silent for {look.silent_s:.0f} s: {where}"
