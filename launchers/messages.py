"""What supervisors and workers tell each other: one JSON line a message, typed at both ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipeline.placement.binding import Binding
from pipeline.rundir import from_jsonable, to_jsonable
from pipeline.types import RankExit

LINE_LIMIT_BYTES = 1 << 20


class StopCause(Enum):
    """Why a run is being ended before all ranks are done."""

    rank_failed = "rank_failed"
    rank_lost = "rank_lost"
    node_lost = "node_lost"
    leader_lost = "leader_lost"
    not_complete = "not_complete"
    """Not all ranks reported at the start."""
    refused = "refused"
    """A node is not what the hardware profile expects, and that was to be held against it."""
    cancelled = "cancelled"
    timeout = "timeout"
    preempted = "preempted"
    hang = "hang"
    """A rank went silent for longer than its steps explain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A supervisor to its node's leader: I am here, and these CPUs I may use."""

    token: str
    rank: int
    local_rank: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReady:
    """A node's leader to rank 0's: these ranks of my node reported."""

    token: str
    node: str
    node_rank: int
    ranks: tuple[int, ...]
    refusal: str | None = None
    """Why the node may not train."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A node's leader to a supervisor, before the start: this is the place of your worker."""

    binding: Binding | None
    """None: nothing could be planned, the worker runs unbound."""
    digest: str
    """Of the plan for the whole node."""
    spare: tuple[int, ...]
    """CPUs no worker has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declined:
    """A supervisor to its node's leader: my worker won't take that place."""

    rank: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Down to every supervisor: start your worker; the ranks meet here."""

    address: str
    port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """Up from a supervisor: how its worker ended."""

    exit: RankExit


@dataclass(frozen=True, kw_only=True, slots=True)
class Signalled:
    """Up from a supervisor: it was told from outside to end."""

    rank: int
    signal: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Down to every supervisor: end your worker."""

    cause: StopCause
    reason: str
    """One line for people."""
    suspects: tuple[str, ...] = ()
    """Nodes that it points to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Down to the leaders of nodes: have the workers save and leave."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Silent:
    """Up from a node's leader: a rank said nothing for longer than it had said it would."""

    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LookAround:
    """Down to the leaders of nodes: have the workers show their stacks, and say what they do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a node's leader found out about one rank that may be hung."""

    rank: int
    node: str
    step: int
    doing: str
    silent_s: float
    process_state: str
    """As in /proc/PID/stat: R, S, T (stopped), D (in the kernel)…"""
    stack: tuple[str, ...]
    """Frames of its main thread, newest first; empty: it did not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """Up from a node's leader: its ranks."""

    node_rank: int
    looks: tuple[Look, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """Up from a node's leader: no worker of my node is left."""

    node_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bye:
    """Down to every supervisor: all is written, exit."""

    exit_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """Up from a supervisor to its node's leader: what its worker printed."""

    rank: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerHello:
    """A worker to its node's leader: events of this rank follow."""

    rank: int
    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEvent:
    """A worker to its node's leader: one event for the journal."""

    kind: str
    time: float
    rank: int
    data: dict[str, Any]


Message = (
    Hello
    | NodeReady
    | Placed
    | Declined
    | Start
    | Exited
    | Signalled
    | Stop
    | Notice
    | Silent
    | LookAround
    | Looked
    | Drained
    | Bye
    | LogLine
    | WorkerHello
    | WorkerEvent
)

_KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "node": NodeReady,
    "placed": Placed,
    "declined": Declined,
    "start": Start,
    "exited": Exited,
    "signalled": Signalled,
    "stop": Stop,
    "notice": Notice,
    "silent": Silent,
    "look": LookAround,
    "looked": Looked,
    "drained": Drained,
    "bye": Bye,
    "log": LogLine,
    "worker": WorkerHello,
    "event": WorkerEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(message: Message) -> bytes:
    """One message as one line."""
    return json.dumps({"message": _NAMES[type(message)], **to_jsonable(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line; raises ValueError when it is none."""
    try:
        document = json.loads(line)
        message: Message = from_jsonable(document, _KINDS[document.pop("message")])
    except Exception as error:  # a stranger on the port may send anything: all of it is one error here
        raise ValueError(f"not a message: {line[:80]!r}") from error
    return message


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Queues a message; nothing is said when the other end is gone, `receive` tells."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> Message | None:
        """The next message; None once the other end is gone or sends what is none."""
        try:
            line = await self._reader.readline()
            return decode(line) if line.endswith(b"\n") else None
        except (ValueError, OSError):
            return None

    async def close(self) -> None:
        """Sends what is queued and closes."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except OSError:
            pass  # the other end went first
