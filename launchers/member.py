"""The supervisor of one rank: reports to its node's leader, runs the worker when told, ends it when told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from launchers.ending import shell_code
from launchers.messages import (
    LINE_LIMIT_BYTES,
    Bye,
    Declined,
    Exited,
    Hello,
    LogLine,
    Peer,
    Placed,
    Signalled,
    Start,
    Stop,
    StopCause,
)
from launchers.node_files import NodeFiles
from launchers.own_place import allowed_cpus, complaint_about, move_aside
from launchers.task import Task
from launchers.worker_environment import Place, merged, worker_variables
from launchers.worker_process import WorkerProcess
from pipeline.errors import ClusterError
from pipeline.placement.environment import EnvVar
from pipeline.rundir import RunDir, to_jsonable
from pipeline.types import RankExit

LEADER_POLL_S = 0.05


class Member:
    """One rank. `master` is rank 0's already listening socket for the ranks' own rendezvous."""

    def __init__(
        self,
        task: Task,
        *,
        run_dir: Path,
        attempt: int,
        token: str,
        python: Sequence[str],
        variables: Sequence[EnvVar],
        prefix: Sequence[str],
    ) -> None:
        """`variables` are further ones of the worker, `prefix` is the command that its `python` is started under."""
        self._task = task
        self._python = python
        self._run_dir = run_dir
        self._attempt = attempt
        self._token = token
        self._variables = tuple(variables)
        self._prefix = tuple(prefix)
        self._allowed = allowed_cpus(os.environ, tuple(sorted(os.sched_getaffinity(0))))
        self._place = Place(binding=None, digest="", threads=max(1, len(self._allowed) // task.local_ranks))
        self._peer: Peer | None = None
        self._worker: WorkerProcess | None = None
        self._stop_asked = asyncio.Event()

    async def run(
        self, leader_socket: Path, *, master: Callable[[], socket.socket | None], connect_timeout_s: float
    ) -> int:
        """The whole life of the rank; the exit code for its task."""
        peer = self._peer = await _connect(leader_socket, connect_timeout_s)
        peer.send(
            Hello(
                token=self._token,
                rank=self._task.rank,
                local_rank=self._task.local_rank,
                cpus=self._allowed,
            )
        )
        watch: asyncio.Task[RankExit] | None = None
        code: int | None = None
        while code is None:
            match await peer.receive():
                case Placed() as placed:
                    self._take_place(placed, peer)
                case Start() as start if watch is None and not self._stop_asked.is_set():
                    self._worker = await self._start_worker(start, leader_socket, master())
                    watch = asyncio.create_task(self._watch(self._worker))
                case Stop():
                    await self._end_worker()
                case Bye(exit_code=job_code):
                    code = job_code
                case None:
                    self._note_lost_leader()
                    code = 1
                case _:
                    pass
        await self._end_worker()
        seen = await watch if watch else None
        await peer.close()
        return _task_code(seen, code)

    def signalled(self, number: int) -> None:
        """This task was told from outside to end; the job's leader decides what that means."""
        if self._peer is not None:
            self._peer.send(Signalled(rank=self._task.rank, signal=number))

    def _take_place(self, placed: Placed, peer: Peer) -> None:
        """Takes the place it was given if that is within its own mask; its supervisor makes room where it can."""
        binding = placed.binding
        if binding is None:
            return
        if complaint := complaint_about(binding, self._task.rank, self._allowed):
            peer.send(Declined(rank=self._task.rank, reason=complaint))
            return
        self._place = Place(binding=binding, digest=placed.digest, threads=binding.cores)
        move_aside(placed.spare, self._allowed)

    async def _start_worker(self, start: Start, events: Path, master: socket.socket | None) -> WorkerProcess:
        variables = worker_variables(
            self._task,
            start,
            attempt=self._attempt,
            events=events,
            place=self._place,
            listen_fd=master.fileno() if master else None,
        )
        argv = [*self._prefix, *self._python, "-P", "-u", "-m", "pipeline.training", str(self._run_dir)]
        inherited = [master.fileno()] if master else []
        worker = await WorkerProcess.start(
            argv,
            merged(os.environ, (*variables, *self._variables)),
            binding=self._place.binding,
            inherited=inherited,
            on_line=self._on_line,
        )
        if master:
            master.close()  # the worker's now; were it ours too, a dead rank 0 would look alive to the others
        return worker

    def _note_lost_leader(self) -> None:
        """The leader wrote this node's files; now that it is gone the next rank says so, and no other, in its place."""
        if self._task.local_rank != 1:
            return
        leader = self._task.rank - 1
        message = f"rank {leader} on {self._task.node} vanished with its supervisor, which led the node"
        stop = Stop(cause=StopCause.leader_lost, reason=message)
        files = NodeFiles(RunDir(self._run_dir).attempt(self._attempt), self._task.node)
        files.event("stop", to_jsonable(stop), rank=None)
        files.line(None, f"stopping: {message}")
        files.close(timeout_s=10)

    def _on_line(self, text: str) -> None:
        if self._peer is not None:
            self._peer.send(LogLine(rank=self._task.rank, text=text))

    async def _watch(self, worker: WorkerProcess) -> RankExit:
        seen = await worker.wait(rank=self._task.rank, node=self._task.node)
        if self._peer is not None:
            self._peer.send(Exited(exit=seen))
        return seen

    async def _end_worker(self) -> None:
        self._stop_asked.set()
        if self._worker is not None:
            await self._worker.stop()


def _task_code(seen: RankExit | None, job_code: int) -> int:
    """A rank that failed by itself keeps its own code; all others end as the job does."""
    failed = seen is not None and seen.exit_code != 0 and not seen.stopped
    return shell_code(seen) if failed and seen is not None else job_code


async def _connect(leader_socket: Path, timeout_s: float) -> Peer:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return Peer(*await asyncio.open_unix_connection(str(leader_socket), limit=LINE_LIMIT_BYTES))
        except OSError as error:
            if loop.time() > deadline:
                raise ClusterError(
                    f"the leader of this node did not open {leader_socket} within {timeout_s:g} s"
                ) from error
        await asyncio.sleep(LEADER_POLL_S)
