"""Notice that the job will end soon: signals that mean "save and leave", not "die", and one that shows stacks."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SAVE_AND_LEAVE = (signal.SIGUSR2, signal.SIGTERM)
"""SIGUSR2 comes before a time limit, and before preemption where the site has it so; SIGTERM before preemption
elsewhere, and at scontrol requeue. A worker that has to end at once is killed."""
SHOW_STACKS = signal.SIGUSR1


class Notice:
    """Whether this rank was told to save and leave."""

    def __init__(self) -> None:
        self._given = False

    @property
    def given(self) -> bool:
        """Ranks hear of it at different times; they agree on a step with each other."""
        return self._given

    def listen(self) -> None:
        """Takes the signals from now on; call it in the main thread."""
        for number in SAVE_AND_LEAVE:
            signal.signal(number, self._take)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Ignores the signals meanwhile, and so for their whole life do processes that are started meanwhile: Slurm
        signals all of a step, and a writer of checkpoints would die of it. The supervisor repeats a notice."""
        before = [signal.signal(number, signal.SIG_IGN) for number in SAVE_AND_LEAVE]
        try:
            yield
        finally:
            for number, handler in zip(SAVE_AND_LEAVE, before, strict=True):
                signal.signal(number, handler)

    def _take(self, *_: object) -> None:
        self._given = True


def show_stacks_into(path: Path) -> None:
    """From now on SHOW_STACKS writes the stacks of all threads to a file, also while a collective holds the thread."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream: IO[str] = path.open(
        "a", encoding="utf-8"
    )  # open for the life of the process: faulthandler keeps its number
    faulthandler.register(SHOW_STACKS, file=stream, all_threads=True)
