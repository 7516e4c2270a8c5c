"""The leader of one node: gathers its ranks, writes its files, and passes word between them and rank 0's supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from launchers.beside import Beside
from launchers.messages import (
    LINE_LIMIT_BYTES,
    Bye,
    Declined,
    Drained,
    Exited,
    Hello,
    LogLine,
    LookAround,
    Looked,
    Message,
    NodeReady,
    Notice,
    Peer,
    Signalled,
    Silent,
    Start,
    Stop,
    StopCause,
    WorkerEvent,
    WorkerHello,
)
from launchers.node_files import NodeFiles
from launchers.placing import NodePlacing
from launchers.task import Task
from launchers.watchdog import Watchdog
from pipeline.rundir import to_jsonable
from pipeline.types import RankExit

RETRY_S = 0.2
SAMPLER_END_S = 3.0
DRAIN_S = 10.0
"""How long killed workers may take to be gone: those of a node that the kernel holds up."""
WATCH_EVERY_S = 1.0
NOTICE_EVERY_S = 3.0
"""How often a notice is repeated: a worker that is about to start doesn't hear it yet."""


class NodeHub:
    """Serves the supervisors and workers of one node over a unix socket."""

    def __init__(
        self,
        task: Task,
        *,
        token: str,
        files: NodeFiles,
        placing: NodePlacing,
        watchdog: Watchdog,
        sampler: Beside | None,
    ) -> None:
        """`sampler` runs from when the ranks of the node have their places to when the last one is gone."""
        self._task = task
        self._token = token
        self._files = files
        self._placing = placing
        self._sampler = sampler
        self._watchdog = watchdog
        self._notified: asyncio.Task[None] | None = None
        self._members: dict[int, Peer] = {}
        self._hellos: dict[int, Hello] = {}
        self._exits: dict[int, RankExit] = {}
        self._complete = asyncio.Event()
        self._drained = asyncio.Event()
        self._up: Peer | None = None
        self._ending = False

    async def run(self, socket_path: Path, *, ports: tuple[int, ...], timeout_s: float) -> None:
        """Serves until rank 0's supervisor says bye or is lost; returns when no rank of the node is left."""
        socket_path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, str(socket_path), limit=LINE_LIMIT_BYTES)
        watching = asyncio.create_task(self._watch_workers())
        try:
            bye = await self._lead(ports, timeout_s)
            self._ending = True
            self._to_members(bye)
            # Each member closes its connection once its worker is gone.
            await self._until(lambda: not self._members, DRAIN_S)
        finally:
            watching.cancel()
            if self._notified is not None:
                self._notified.cancel()
            server.close()
            socket_path.unlink(missing_ok=True)

    async def _watch_workers(self) -> None:
        """Reports ranks that went silent, each time it looks: the job's leader knows what it has heard already."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            if self._up is not None:
                for rank in self._watchdog.silent():
                    self._up.send(Silent(rank=rank))

    async def _give_notice(self) -> None:
        while True:
            self._watchdog.tell_to_leave()
            await asyncio.sleep(NOTICE_EVERY_S)

    async def _lead(self, ports: tuple[int, ...], timeout_s: float) -> Bye:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        with contextlib.suppress(TimeoutError):  # rank 0's supervisor names the missing ones
            await asyncio.wait_for(self._complete.wait(), timeout_s)
            await self._place_members()
        up = await self._connect_up(ports, deadline + timeout_s)
        if up is None:
            message = f"rank 0's supervisor on {self._task.first_host} could not be reached from {self._task.node}"
            return await self._give_up(StopCause.leader_lost, message)
        self._up = up
        up.send(
            NodeReady(
                token=self._token,
                node=self._task.node,
                node_rank=self._task.node_rank,
                ranks=tuple(sorted(self._members)),
                refusal=self._placing.refusal,
            )
        )
        for seen in self._exits.values():
            up.send(Exited(exit=seen))
        return await self._relay(up)

    async def _place_members(self) -> None:
        """Tells every rank its place; none starts before, since the job's leader hasn't heard of the node yet."""
        for rank, placed in (await self._placing.place(list(self._hellos.values()))).items():
            if rank in self._members:
                self._members[rank].send(placed)

    async def _relay(self, up: Peer) -> Bye:
        drain: asyncio.Task[None] | None = None
        while True:
            match await up.receive():
                case Start() as start:
                    await self._begin(start)
                    drain = asyncio.create_task(self._report_drained(up))
                case Stop() as stop:
                    self._note_stop(stop)
                    self._to_members(stop)
                    if drain is None:  # nothing was started here
                        up.send(Drained(node_rank=self._task.node_rank))
                case Notice() | LookAround() as order:
                    await self._attend_to_workers(order, up)
                case Bye() as bye:
                    return bye
                case None:
                    message = (
                        f"rank 0 on {self._task.first_host} is gone with its supervisor, as seen from {self._task.node}"
                    )
                    return await self._give_up(StopCause.leader_lost, message)
                case _:
                    pass

    async def _begin(self, start: Start) -> None:
        self._files.event("start", to_jsonable(start), rank=None)
        self._to_members(start)
        if self._sampler is not None:
            await self._sampler.start()

    async def _attend_to_workers(self, order: Notice | LookAround, up: Peer) -> None:
        match order:
            case Notice(reason=reason):
                self._files.event("notice", {"reason": reason}, rank=None)
                self._files.line(None, f"told to save and leave: {reason}")
                self._notified = self._notified or asyncio.create_task(self._give_notice())
            case LookAround():
                up.send(Looked(node_rank=self._task.node_rank, looks=await self._watchdog.look()))

    async def _connect_up(self, ports: tuple[int, ...], deadline: float) -> Peer | None:
        """A connection to rank 0's supervisor; the port is the first candidate on which somebody answers."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            for port in ports:
                try:
                    opened = asyncio.open_connection(self._task.first_host, port, limit=LINE_LIMIT_BYTES)
                    peer = Peer(*await asyncio.wait_for(opened, 5))
                except (OSError, TimeoutError):
                    continue
                peer.send(Hello(token=self._token, rank=self._task.rank, local_rank=0, cpus=()))
                answer = await _within(peer.receive(), 5)
                if isinstance(answer, Hello) and answer.token == self._token:
                    return peer
                await peer.close()
            await asyncio.sleep(RETRY_S)
        return None

    async def _give_up(self, cause: StopCause, message: str) -> Bye:
        stop = Stop(cause=cause, reason=message)
        self._note_stop(stop)
        self._to_members(stop)
        await self._until(self._drained.is_set, DRAIN_S)
        return Bye(exit_code=1)

    async def _report_drained(self, up: Peer) -> None:
        await self._drained.wait()
        if self._sampler is not None:
            await self._sampler.end(SAMPLER_END_S)
        up.send(Drained(node_rank=self._task.node_rank))

    # ----------------------------------------------------------------- members and workers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        rank: int | None = None
        while (message := await peer.receive()) is not None:
            if isinstance(message, Hello) and message.token == self._token:
                rank = message.rank
                self._join(message, peer)
            else:
                self._take(message)
        await peer.close()
        if rank is not None:
            self._leave(rank)

    def _join(self, hello: Hello, peer: Peer) -> None:
        self._members[hello.rank] = peer
        self._hellos[hello.rank] = hello
        if len(self._members) == self._task.local_ranks:
            self._complete.set()

    def _leave(self, rank: int) -> None:
        self._members.pop(rank, None)
        if rank not in self._exits and not self._ending:
            self._note_exit(_vanished(rank, self._task.node))

    def _take(self, message: Message) -> None:
        match message:
            case WorkerHello(rank=rank, pid=pid):
                self._watchdog.started(rank, pid)
            case WorkerEvent() as event:
                self._take_event(event)
            case Declined() as declined:
                self._placing.decline(declined)
            case LogLine(rank=rank, text=text):
                self._files.line(rank, text)
            case Exited(exit=seen):
                self._note_exit(seen)
            case Signalled() as signalled if self._up is not None:
                self._up.send(signalled)
            case _:
                pass

    def _take_event(self, event: WorkerEvent) -> None:
        if event.kind == "beat":  # once a step and rank: too much for a journal
            self._watchdog.beat(event.rank, event.data)
            return
        self._files.event(event.kind, event.data, rank=event.rank, at=event.time)
        match event.kind:
            case "metrics":
                self._files.line(event.rank, _step_text(event.data))
            case "placement":
                self._placing.observe(event.rank, event.data)

    def _note_exit(self, seen: RankExit) -> None:
        self._exits[seen.rank] = seen
        self._watchdog.ended(seen.rank)
        self._files.event("exit", to_jsonable(seen), rank=seen.rank, at=seen.time)
        if self._up is not None:
            self._up.send(Exited(exit=seen))
        if len(self._exits) == self._task.local_ranks:
            self._placing.finish()
            self._drained.set()

    def _note_stop(self, stop: Stop) -> None:
        self._files.event("stop", to_jsonable(stop), rank=None)
        self._files.line(None, f"stopping: {stop.reason}")

    def _to_members(self, message: Message) -> None:
        for peer in list(self._members.values()):
            peer.send(message)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)


def _step_text(data: Mapping[str, Any]) -> str:
    """A step for the log."""
    values = data.get("values", {})
    return " ".join([f"step {data.get('step')}", *(f"{name} {value:.6g}" for name, value in values.items())])


def _vanished(rank: int, node: str) -> RankExit:
    return RankExit(rank=rank, node=node, exit_code=None, signal=None, stopped=False, tail=(), time=time.time())


async def _within(waiting: Awaitable[Message | None], timeout_s: float) -> Message | None:
    try:
        return await asyncio.wait_for(waiting, timeout_s)
    except TimeoutError:
        return None
