"""The node leader's eye on its workers: when each was last heard of, and what one that may be hung is doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchers.messages import Look
from pipeline.rundir import AttemptDir

SHOW_STACKS = signal.SIGUSR1
SAVE_AND_LEAVE = signal.SIGUSR2
ANSWER_S = 3.0
"""How long a worker has to write its stacks; it does so in a signal handler in C, whatever it is busy with."""
_FRAMES = 12
_MAIN_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[[^\]]*\] )?\(most recent call first\):\n((?:  .*\n)*)"
)


@dataclass(frozen=True, slots=True)
class _Beat:
    step: int
    doing: str
    limit_s: float
    heard_at: float
    """Monotonic."""


class Watchdog:
    """Workers of one node by rank."""

    def __init__(self, attempt: AttemptDir, node: str) -> None:
        self._attempt = attempt
        self._node = node
        self._pids: dict[int, int] = {}
        self._beats: dict[int, _Beat] = {}

    def started(self, rank: int, pid: int) -> None:
        """A worker said hello."""
        self._pids[rank] = pid

    def beat(self, rank: int, data: Mapping[str, Any]) -> None:
        """A worker says what it is about to do, and for how long at most."""
        self._beats[rank] = _Beat(
            step=int(data["step"]), doing=str(data["doing"]), limit_s=float(data["limit_s"]), heard_at=time.monotonic()
        )

    def ended(self, rank: int) -> None:
        """A worker is gone."""
        self._pids.pop(rank, None)
        self._beats.pop(rank, None)

    def silent(self) -> list[int]:
        """Ranks that said nothing for longer than they had said they would."""
        now = time.monotonic()
        return [rank for rank, beat in self._beats.items() if 0 < beat.limit_s < now - beat.heard_at]

    def tell_to_leave(self) -> None:
        """Gives all workers notice; those that have it already don't mind."""
        self._send(self._pids.values(), SAVE_AND_LEAVE)

    async def look(self) -> tuple[Look, ...]:
        """Has all workers write their stacks and says what is seen of each."""
        before = {rank: _size(self._attempt.stacks(rank)) for rank in self._pids}
        self._send(self._pids.values(), SHOW_STACKS)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and any(_size(self._attempt.stacks(r)) == before[r] for r in before):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)  # the last of them may be in the middle of a line
        return tuple(self._look_at(rank, before[rank]) for rank in sorted(before))

    def _look_at(self, rank: int, offset: int) -> Look:
        beat = self._beats.get(rank, _Beat(0, "starting", 0.0, time.monotonic()))
        return Look(
            rank=rank,
            node=self._node,
            step=beat.step,
            doing=beat.doing,
            silent_s=time.monotonic() - beat.heard_at,
            process_state=_process_state(self._pids.get(rank, 0)),
            stack=main_stack(_text_from(self._attempt.stacks(rank), offset)),
        )

    @staticmethod
    def _send(pids: Iterable[int], number: signal.Signals) -> None:
        for pid in list(pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def main_stack(text: str) -> tuple[str, ...]:
    """Frames of the main thread, newest first, from what faulthandler writes: it is the thread that takes signals."""
    threads = list(_MAIN_THREAD.finditer(text))
    current = [found for found in threads if found[0].startswith("Current")] or threads[-1:]
    return tuple(line.strip() for line in current[0][1].splitlines()[:_FRAMES]) if current else ()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(1 << 16).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _process_state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
