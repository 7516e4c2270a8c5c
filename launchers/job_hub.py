"""The leader of the whole job, in rank 0's supervisor: calls the roll, starts all ranks, decides how the run ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from launchers.ending import decide, describe, first_failure, lost_a_peer
from launchers.hang import describe_hang, late_ranks
from launchers.messages import (
    Bye,
    Drained,
    Exited,
    Hello,
    Look,
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
)
from launchers.task import Task
from pipeline.types import End, LauncherKind, RankExit

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
EARLY_S = 60.0
"""How much earlier than asked for Slurm may send its notice before the time limit (man sbatch, --signal)."""
LOOK_S = 10.0
"""How long the leaders of nodes may take to say what their ranks are doing."""
DRAIN_S = 15.0
FINISH_SPREAD_S = 300.0
"""How long ranks may go on once another one has finished."""


class JobHub:
    """Talks to the leaders of all nodes over TCP; everything it decides goes through one inbox."""

    def __init__(
        self,
        task: Task,
        *,
        token: str,
        cancel_asked: Callable[[], bool],
        time_limit_at: float,
        notice_lead_s: float,
        save_s: float,
    ) -> None:
        """`time_limit_at` is when the scheduler ends the job, `notice_lead_s` how long before that it gives notice;
        `save_s` is how long ranks may take to save where no scheduler sets a time."""
        self._task = task
        self._token = token
        self._cancel_asked = cancel_asked
        self._time_limit_at = time_limit_at
        self._notice_lead_s = notice_lead_s
        self._save_s = save_s
        self._inbox: asyncio.Queue[tuple[Peer, Message | None]] = asyncio.Queue()
        self._nodes: dict[int, tuple[NodeReady, Peer]] = {}
        self._exits: dict[int, RankExit] = {}
        self._drained: set[int] = set()
        self._signalled: Signalled | None = None
        self._notice: Stop | None = None
        """Why the ranks were told to save and leave."""
        self._leave_by = float("inf")
        self._silent: int | None = None
        self._looks: dict[int, tuple[Look, ...]] = {}
        self._lost: str | None = None
        self._lost_nodes: tuple[str, ...] = ()
        self._bye: Bye | None = None

    @property
    def ended_by(self) -> signal.Signals | None:
        """The signal from outside on which the ranks left, if one it was."""
        return signal.Signals(self._signalled.signal) if self._signalled and self._notice else None

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
        return decide(list(self._exits.values()), stop or self._notice, ranks=self._task.ranks, now=time.time())

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
                return await self._lost_before_signal() or self._reason_of_signal()
        return self._refusal()

    def _refusal(self) -> Stop | None:
        """Once all nodes are there, so that all that are not as they should be are named."""
        refusals = [ready.refusal for ready, _ in self._nodes.values() if ready.refusal]
        more = f" | and {len(refusals) - REFUSALS_SHOWN} more nodes" if len(refusals) > REFUSALS_SHOWN else ""
        reason = " | ".join(refusals[:REFUSALS_SHOWN]) + more
        return Stop(cause=StopCause.refused, reason=reason) if refusals else None

    async def _watch(self) -> Stop | None:
        """Until all ranks have ended by themselves (None) or the run has to be ended."""
        deadline = float("inf")
        while len(self._exits) < self._task.ranks:
            took_one = await self._take_one(min(deadline, self._leave_by, self._next_notice()) - time.monotonic())
            stop = await self._reason_to_stop()
            if stop:
                return stop
            if self._exits:
                deadline = min(deadline, time.monotonic() + FINISH_SPREAD_S)
            if not took_one and time.monotonic() >= min(deadline, self._leave_by):
                return self._overdue()
        return None

    def _overdue(self) -> Stop:
        left = _listed(sorted(set(range(self._task.ranks)) - set(self._exits)))
        if self._notice is not None:
            reason = f"{self._notice.reason}; ranks {left} did not save and leave in time"
            return Stop(cause=self._notice.cause, reason=reason)
        message = f"ranks {left} still ran {FINISH_SPREAD_S:g} s after another one had finished"
        return Stop(cause=StopCause.rank_failed, reason=message)

    async def _drain(self) -> None:
        """Waits until every node that is still there has ended its workers."""
        deadline = time.monotonic() + DRAIN_S
        while not set(self._nodes) <= self._drained:
            if not await self._take_one(deadline - time.monotonic()):
                return

    async def _reason_to_stop(self) -> Stop | None:
        failed = await self._failure()
        # A signal from outside reaches workers too, and those of one node before another's: what then dies of its
        # peers' end is no cause. Only a supervisor's own end makes srun signal the rest.
        if failed and not _vanished(failed) and (self._cancel_asked() or await self._was_signalled()):
            return self._notice or self._reason_of_signal()
        if failed and not (self._lost and lost_a_peer(failed)):
            cause = StopCause.rank_lost if _vanished(failed) else StopCause.rank_failed
            return Stop(cause=cause, reason=describe(failed), suspects=(failed.node,) if _vanished(failed) else ())
        if self._lost:
            return Stop(cause=StopCause.node_lost, reason=self._lost, suspects=self._lost_nodes)
        if self._notice is None and (self._signalled or self._time_is_up()):
            return await self._act_on_signal()
        if self._notice is not None and self._cancel_asked():
            return self._reason_of_signal()
        return await self._look_at_silent() if self._silent is not None else None

    # ----------------------------------------------------------------- notice

    async def _act_on_signal(self) -> Stop | None:
        """Has the ranks save and leave, or says why they are to be ended at once."""
        lost = await self._lost_before_signal()
        if lost:
            return lost
        reason = self._reason_of_signal()
        if self._cancel_asked():
            return reason
        self._notice = reason
        if self._task.launcher is LauncherKind.local:  # a scheduler ends what doesn't leave by itself
            self._leave_by = time.monotonic() + self._save_s
        self._broadcast(Notice(reason=reason.reason))
        return None

    async def _lost_before_signal(self) -> Stop | None:
        """The supervisor whose end made srun signal the rest, where that is what the signal is."""
        deadline = time.monotonic() + SIGNAL_SETTLE_S
        while self._signalled and await self._take_one(deadline - time.monotonic()):
            lost = first_failure([seen for seen in self._exits.values() if _vanished(seen)])
            if lost:
                return Stop(cause=StopCause.rank_lost, reason=describe(lost), suspects=(lost.node,))
        return None

    def _reason_of_signal(self) -> Stop:
        if self._cancel_asked():
            return Stop(cause=StopCause.cancelled, reason="cancelled through himori")
        number = self._signalled.signal if self._signalled else None
        name = signal.Signals(number).name if number else "its own clock"
        if self._time_limit_at - time.time() <= (
            LIMIT_SLACK_S if number == signal.SIGTERM else self._notice_lead_s + EARLY_S
        ):
            return Stop(cause=StopCause.timeout, reason=f"the time limit is reached ({name})")
        if number == signal.SIGUSR2:
            return Stop(cause=StopCause.preempted, reason=f"told to make room ({name})")
        return Stop(cause=StopCause.cancelled, reason=f"ended from outside by {name} (scancel, requeue or preemption)")

    def _next_notice(self) -> float:
        """When the ranks are told to leave though no signal came, monotonic."""
        if self._notice is not None:
            return float("inf")
        return time.monotonic() + max(0.0, self._time_limit_at - self._notice_lead_s - time.time())

    def _time_is_up(self) -> bool:
        return time.time() >= self._time_limit_at - self._notice_lead_s

    # ----------------------------------------------------------------- hang

    async def _look_at_silent(self) -> Stop | None:
        """Has all ranks looked at, since the one that is reported silent may be waiting for another."""
        self._broadcast(LookAround())
        deadline = time.monotonic() + LOOK_S
        while not set(self._nodes) <= set(self._looks) and await self._take_one(deadline - time.monotonic()):
            if self._exits or self._lost:  # it has an end after all, which says more
                self._silent, self._looks = None, {}
                return None
        looks = [look for node in sorted(self._looks) for look in self._looks[node]]
        if not looks:
            self._silent = None
            return None
        suspects = tuple(sorted({look.node for look in late_ranks(looks)}))
        return Stop(cause=StopCause.hang, reason=describe_hang(looks), suspects=suspects)

    # ----------------------------------------------------------------- failures

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
            case Silent(rank=rank) if self._silent is None:
                self._silent = rank
            case Looked(node_rank=node_rank, looks=looks):
                self._looks[node_rank] = looks
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
                    self._lost_nodes = (*self._lost_nodes, ready.node)
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
