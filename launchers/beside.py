"""A process beside the workers that never holds them up: it gives way to all others and ends with its supervisor."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from launchers import shim

NICE = 10


class Beside:
    """A Python module run as a process, its output in a log."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self._argv = [sys.executable, "-P", "-m", module, *arguments]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it; it inherits the CPUs of its supervisor at this moment."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, object] = {"death_signal": int(signal.SIGTERM), "nice": NICE}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *shim.command(options, self._argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                process_group=0,
            )

    async def end(self, timeout_s: float) -> None:
        """Tells it to end and waits; kills it after `timeout_s`."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self.wait(timeout_s)

    async def wait(self, timeout_s: float) -> bool:
        """Waits for its own end; kills it after `timeout_s` and returns False."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            self._process.kill()
            return False
        return True
