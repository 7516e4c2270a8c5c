"""One rank's worker as a child process: started through the shim, listened to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchers import shim
from launchers.causes import KERNEL_OOM
from pipeline.placement.binding import Binding, BindingFlag
from pipeline.rundir import to_jsonable
from pipeline.types import RankExit

TAIL_LINES = 30
CHUNK_BYTES = 1 << 16
END_POLL_S = 0.05


class WorkerProcess:
    """A started worker; its output goes line by line to `on_line`, the last lines are kept."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stopped = False
        self._oom_kills = oom_kills()
        self._reader = asyncio.create_task(self._read_output())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        binding: Binding | None,
        inherited: Sequence[int],
        on_line: Callable[[str], None],
    ) -> WorkerProcess:
        """Starts `argv` in a process group of its own, bound as `binding` says, dying with this process.

        `inherited` are file descriptors it keeps.
        """
        options: dict[str, object] = {
            "death_signal": int(signal.SIGKILL),
            "parent": os.getpid(),
            "ignores_notice": True,
        }
        if binding is not None and BindingFlag.unbound not in binding.flags:
            options |= {"cpus": list(binding.cpus), "memory": to_jsonable(binding.memory)}
        process = await asyncio.create_subprocess_exec(
            *shim.command(options, argv),
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=tuple(inherited),
            process_group=0,
        )
        return cls(process, on_line)

    async def wait(self, *, rank: int, node: str) -> RankExit:
        """Waits for the end and says how it was."""
        code = await self._ended()
        seen_at = time.time()
        self._signal(signal.SIGKILL)  # what it started, as Megatron's writers of checkpoints, is of no use without it
        # A child of the worker may keep the pipe open: what it has to say is not waited for long.
        await asyncio.wait([self._reader], timeout=2.0)
        if code == -signal.SIGKILL and not self._stopped and oom_kills() > self._oom_kills:
            self._tail.append(KERNEL_OOM)
        return RankExit(
            rank=rank,
            node=node,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stopped=self._stopped,
            tail=tuple(self._tail),
            time=seen_at,
        )

    async def _ended(self) -> int:
        """The exit code; asyncio's own wait also waits for the pipe, which processes that the worker started hold."""
        while self._process.returncode is None:
            await asyncio.sleep(END_POLL_S)
        return self._process.returncode

    async def stop(self) -> None:
        """SIGKILL to the worker and all it started: what there was to save it has saved, or can't any more."""
        self._stopped = self._process.returncode is None
        self._signal(signal.SIGKILL)
        await self._ended()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
            os.killpg(self._process.pid, number)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        pending = b""
        while chunk := await self._process.stdout.read(CHUNK_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if len(pending) > CHUNK_BYTES:  # no line end in sight: pass it on in pieces rather than hoard it
                self._take(pending)
                pending = b""
        if pending:
            self._take(pending)

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        self._tail.append(text)
        self._on_line(text)


def oom_kills(proc: Path = Path("/proc")) -> int:
    """How many processes the kernel has killed for lack of memory on this node since it was booted, in any cgroup."""
    try:
        found = re.search(r"^oom_kill (\d+)$", (proc / "vmstat").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
