"""The leader of the whole job, in rank 0's supervisor: calls the roll, starts all ranks, decides how the run ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from launchers.ending import decide, describe, first_failure, lost_a_peer
from launchers.messages import (
    Bye,
    Drained,
    Exited,
    Hello,
    Message,
    NodeReady,
    Peer,
    Signalled,
    Start,
    Stop,
    StopCause,
)
from launchers.task import Task
from pipeline.types import End, RankExit

HANDSHAKE_S = 10.0
ROLL_CALL_SLACK_S = 2.0
"""How much longer than the leaders of nodes, which report at the end of the same time whom they miss."""
CAUSE_SETTLE_S = 3.0
"""How long after a rank that lost a peer that peer's own end may be reported: it may be on another node."""
SIGNAL_SETTLE_S = 0.5
"""After a signal from outside, how long a rank's own failure may still be on its way."""
LIMIT_SLACK_S = 10.0
"""How far the supervisors' clock may be behind the job's: they start after it."""
REFUSALS_SHOWN = 3
FINISH_SPREAD_S = 300.0
"""How long ranks may go on once another one has finished."""


class JobHub:
    """Talks to the leaders of all nodes over TCP; everything it decides goes through one inbox."""

    def __init__(
        self, task: Task, *, token: str, grace_s: float, cancel_asked: Callable[[], bool], time_limit_at: float
    ) -> None:
        self._task = task
        self._token = token
        self._grace_s = grace_s
        self._cancel_asked = cancel_asked
        self._time_limit_at = time_limit_at
        self._inbox: asyncio.Queue[tuple[Peer, Message | None]] = asyncio.Queue()
        self._nodes: dict[int, tuple[NodeReady, Peer]] = {}
        self._exits: dict[int, RankExit] = {}
        self._drained: set[int] = set()
        self._signalled: Signalled | None = None
        self._lost: str | None = None
        self._bye: Bye | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a node's leader; a stranger is let go after the handshake."""
        peer = Peer(reader, writer)
        try:
            greeting = await asyncio.wait_for(peer.receive(), HANDSHAKE_S)
        except TimeoutError:
            greeting = None
        if not (isinstance(greeting, Hello) and greeting.token == self._token):
            await peer.close()
            return
        peer.send(greeting)
        if self._bye is not None:  # too late: nobody reads the inbox any more
            peer.send(self._bye)
        while (message := await peer.receive()) is not None:
            await self._inbox.put((peer, message))
        await self._inbox.put((peer, None))

    async def run(self, *, address: str, port: int, roll_call_s: float) -> End:
        """From the roll call to the decision; all workers are gone when it returns."""
        stop = await self._call_roll(roll_call_s)
        if stop is None:
            self._broadcast(Start(address=address, port=port))
            stop = await self._watch()
        if stop is not None:
            self._broadcast(stop)
        await self._drain()
        return decide(list(self._exits.values()), stop, ranks=self._task.ranks, now=time.time())

    def dismiss(self, exit_code: int) -> None:
        """Lets all supervisors go."""
        self._bye = Bye(exit_code=exit_code)
        while not self._inbox.empty():  # a node that reported after the decision has to go too
            self._note(*self._inbox.get_nowait())
        self._broadcast(self._bye)

    # ----------------------------------------------------------------- stages

    async def _call_roll(self, timeout_s: float) -> Stop | None:
        deadline = time.monotonic() + timeout_s + ROLL_CALL_SLACK_S
        while not self._all_present():
            if not await self._take_one(deadline - time.monotonic()):
                return Stop(cause=StopCause.not_complete, reason=self._missing(timeout_s))
            if self._signalled:
                return await self._stop_for_signal()
        return self._refusal()

    def _refusal(self) -> Stop | None:
        """Once all nodes are there, so that all that are not as they should be are named."""
        refusals = [ready.refusal for ready, _ in self._nodes.values() if ready.refusal]
        more = f" | and {len(refusals) - REFUSALS_SHOWN} more nodes" if len(refusals) > REFUSALS_SHOWN else ""
        reason = " | ".join(refusals[:REFUSALS_SHOWN]) + more
        return Stop(cause=StopCause.refused, reason=reason) if refusals else None

    async def _watch(self) -> Stop | None:
        """Until all ranks have finished (None) or the run has to be ended."""
        deadline = float("inf")
        while len(self._exits) < self._task.ranks:
            if not await self._take_one(deadline - time.monotonic()):
                left = sorted(set(range(self._task.ranks)) - set(self._exits))
                message = f"ranks {_listed(left)} still ran {FINISH_SPREAD_S:g} s after another one had finished"
                return Stop(cause=StopCause.rank_failed, reason=message)
            stop = await self._reason_to_stop()
            if stop:
                return stop
            if self._exits:
                deadline = min(deadline, time.monotonic() + FINISH_SPREAD_S)
        return None

    async def _drain(self) -> None:
        """Waits until every node that is still there has ended its workers."""
        deadline = time.monotonic() + self._grace_s + 5
        while not set(self._nodes) <= self._drained:
            if not await self._take_one(deadline - time.monotonic()):
                return

    async def _reason_to_stop(self) -> Stop | None:
        failed = await self._failure()
        # A signal from outside reaches workers too, and those of one node before another's: what then dies of its
        # peers' end is no cause. Only a supervisor's own end makes srun signal the rest.
        if failed and not _vanished(failed) and (self._cancel_asked() or await self._was_signalled()):
            return self._stop_from_outside()
        if failed and not (self._lost and lost_a_peer(failed)):
            cause = StopCause.rank_lost if _vanished(failed) else StopCause.rank_failed
            return Stop(cause=cause, reason=describe(failed))
        if self._lost:
            return Stop(cause=StopCause.node_lost, reason=self._lost)
        return await self._stop_for_signal() if self._signalled else None

    async def _failure(self) -> RankExit | None:
        """The rank that failed; where one only lost a peer, the peer that is heard of a moment later."""
        deadline = time.monotonic() + CAUSE_SETTLE_S
        failed = first_failure(list(self._exits.values()))
        while failed and lost_a_peer(failed) and self._signalled is None and self._lost is None:
            if not await self._take_one(deadline - time.monotonic()):
                break
            failed = first_failure(list(self._exits.values()))
        return failed

    async def _was_signalled(self) -> bool:
        """Whether a supervisor was told to end too, or is in a moment."""
        deadline = time.monotonic() + SIGNAL_SETTLE_S
        while self._signalled is None and await self._take_one(deadline - time.monotonic()):
            pass
        return self._signalled is not None

    async def _stop_for_signal(self) -> Stop:
        deadline = time.monotonic() + SIGNAL_SETTLE_S
        while await self._take_one(deadline - time.monotonic()):
            lost = first_failure([seen for seen in self._exits.values() if _vanished(seen)])
            if lost:  # the signal was srun's answer to it
                return Stop(cause=StopCause.rank_lost, reason=describe(lost))
        return self._stop_from_outside()

    def _stop_from_outside(self) -> Stop:
        if self._cancel_asked():
            return Stop(cause=StopCause.cancelled, reason="cancelled through himori")
        name = signal.Signals(self._signalled.signal).name if self._signalled else "a signal"
        if time.time() >= self._time_limit_at - LIMIT_SLACK_S:
            return Stop(cause=StopCause.timeout, reason=f"the time limit was reached ({name})")
        return Stop(cause=StopCause.cancelled, reason=f"ended from outside by {name} (scancel or preemption)")

    # ----------------------------------------------------------------- inbox

    async def _take_one(self, timeout_s: float) -> bool:
        """Takes one message into account; False when none came in time."""
        try:
            limit = None if timeout_s == float("inf") else max(0.0, timeout_s)
            self._note(*await asyncio.wait_for(self._inbox.get(), limit))
        except TimeoutError:
            return False
        return True

    def _note(self, peer: Peer, message: Message | None) -> None:
        match message:
            case NodeReady() as ready:
                self._nodes[ready.node_rank] = (ready, peer)
            case Exited(exit=seen):
                self._exits.setdefault(seen.rank, seen)
            case Drained(node_rank=node_rank):
                self._drained.add(node_rank)
            case Signalled() as signalled:
                self._signalled = self._signalled or signalled
            case None:
                self._note_lost(peer)
            case _:
                pass

    def _note_lost(self, peer: Peer) -> None:
        for node_rank, (ready, known) in list(self._nodes.items()):
            if known is peer:
                del self._nodes[node_rank]
                if node_rank not in self._drained:
                    ranks = _listed(ready.ranks)
                    self._lost = f"lost contact with node {ready.node} and its ranks {ranks}"

    def _broadcast(self, message: Message) -> None:
        for _, peer in self._nodes.values():
            peer.send(message)

    def _all_present(self) -> bool:
        return sum(len(ready.ranks) for ready, _ in self._nodes.values()) == self._task.ranks

    def _missing(self, timeout_s: float) -> str:
        present = {rank for ready, _ in self._nodes.values() for rank in ready.ranks}
        missing = _listed(sorted(set(range(self._task.ranks)) - present))
        nodes = ", ".join(f"{ready.node}: {_listed(ready.ranks)}" for ready, _ in self._nodes.values()) or "none"
        return f"ranks {missing} did not report within {timeout_s:g} s (there: {nodes}); see `himori logs`"


def _vanished(seen: RankExit) -> bool:
    """Whether the supervisor is gone too, so that nobody saw how the worker ended."""
    return seen.exit_code is None and seen.signal is None


def _listed(ranks: list[int] | tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:16])
    return shown + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
