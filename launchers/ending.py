"""How an attempt ended, decided from what was seen: pure functions, used by rank 0's supervisor and by `status`."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from launchers.causes import cause_of
from launchers.messages import Stop, StopCause
from pipeline.types import Cause, End, RankExit, RunState, WorkerCode

_STATES = {
    StopCause.rank_failed: RunState.failed,
    StopCause.rank_lost: RunState.failed,
    StopCause.node_lost: RunState.failed,
    StopCause.leader_lost: RunState.failed,
    StopCause.not_complete: RunState.failed,
    StopCause.refused: RunState.failed,
    StopCause.cancelled: RunState.cancelled,
    StopCause.timeout: RunState.timeout,
    StopCause.preempted: RunState.preempted,
    StopCause.hang: RunState.failed,
}

_SLURM_STATES = {
    "COMPLETED": RunState.finished,
    "CANCELLED": RunState.cancelled,
    "PREEMPTED": RunState.preempted,
    "REVOKED": RunState.cancelled,
    "TIMEOUT": RunState.timeout,
    "DEADLINE": RunState.timeout,
    "FAILED": RunState.failed,
    "NODE_FAIL": RunState.failed,
    "OUT_OF_MEMORY": RunState.failed,
    "BOOT_FAIL": RunState.failed,
}

_LOST_A_PEER = (
    "remote worker crashing",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "Connection was likely closed",
    "failed to recv, got 0 bytes",
)
"""What gloo, NCCL and torch's store say to ranks that wait for one that is gone."""


def decide(exits: Sequence[RankExit], stop: Stop | None, *, ranks: int, now: float) -> End:
    """The end of an attempt that its own supervisors saw.

    `exits` are in the order they were seen; `stop` is what ended the run early, if anything did: the ranks were told to
    save and leave by it, or were killed.
    """
    first = first_failure(exits)
    if len(exits) == ranks and all(seen.exit_code == 0 for seen in exits):
        return End(state=RunState.finished, message=f"all {ranks} ranks finished", first=None, time=now)
    if stop is not None:
        known = first if stop.cause in (StopCause.rank_failed, StopCause.rank_lost) else None
        state, message = _STATES[stop.cause], stop.reason
    elif first is not None:
        known, state, message = first, RunState.failed, describe(first)
    else:
        known, state, message = None, RunState.preempted, "its ranks were told to end early"
        stop = Stop(cause=StopCause.preempted, reason=message)
    cause = cause_of(known, [stop] if stop else [], "", lost_a_peer=known is not None and lost_a_peer(known))
    suspects = stop.suspects if stop else ()
    if known is not None and cause is Cause.gpu_fault:
        suspects = (known.node,)
    return End(state=state, message=message, first=known, time=now, cause=cause, suspects=suspects)


def decide_afterwards(
    exits: Sequence[RankExit], stops: Sequence[Stop], scheduler_word: str, *, cancel_asked: bool, ranks: int, now: float
) -> End:
    """The end of an attempt whose supervisors could not write it down.

    `exits` and `stops` come from the journals, `scheduler_word` is the scheduler's state, empty when it knows none.
    """
    first = first_failure(exits)
    state, message = _afterwards(first, exits, stops, scheduler_word, cancel_asked=cancel_asked, ranks=ranks)
    if state is RunState.finished:
        return End(state=state, message=message, first=None, time=now, slurm_state=scheduler_word)
    told = (RunState.cancelled, RunState.timeout, RunState.preempted)
    known = None if state in told else first
    if state is RunState.cancelled:
        cause = Cause.cancelled
    else:
        cause = cause_of(known, stops, scheduler_word, lost_a_peer=known is not None and lost_a_peer(known))
    suspects = tuple(dict.fromkeys(node for stop in stops for node in stop.suspects))
    return End(
        state=state,
        message=message,
        first=known,
        time=now,
        slurm_state=scheduler_word,
        cause=cause,
        suspects=suspects,
    )


def _afterwards(
    first: RankExit | None,
    exits: Sequence[RankExit],
    stops: Sequence[Stop],
    word: str,
    *,
    cancel_asked: bool,
    ranks: int,
) -> tuple[RunState, str]:
    said = _SLURM_STATES.get(word)
    if cancel_asked or said in (RunState.cancelled, RunState.timeout, RunState.preempted):
        state = said if said in (RunState.timeout, RunState.preempted) else RunState.cancelled
        assert state is not None
        return state, "cancelled through himori" if cancel_asked else f"ended by the scheduler: {word}"
    if first is not None or stops:
        return RunState.failed, describe(first) if first is not None else stops[0].reason
    if said is RunState.failed:
        return said, f"the scheduler says {word}; no supervisor could say more, see `himori logs`"
    if said is RunState.finished and len(exits) == ranks:
        return said, f"all {ranks} ranks finished"
    return RunState.unknown, "its processes are gone and nobody could say why" + (
        f"; scheduler: {word}" if said else ""
    )


def first_failure(exits: Sequence[RankExit]) -> RankExit | None:
    """The first exit that was a failure of its own and no consequence of being told to stop.

    A rank that died of its peers' end may be reported before the peer it lost: one with a cause of its own goes first.
    Ranks that were told to save and leave did not fail, nor did those that lost such a peer.
    """
    failed = [seen for seen in exits if seen.exit_code not in (0, WorkerCode.interrupted) and not seen.stopped]
    if any(seen.exit_code == WorkerCode.interrupted for seen in exits):
        failed = [seen for seen in failed if not lost_a_peer(seen)]
    return next((seen for seen in failed if not lost_a_peer(seen)), failed[0] if failed else None)


def lost_a_peer(seen: RankExit) -> bool:
    """Whether the last thing a worker said is that another rank is gone."""
    last = _last_line(seen)
    return seen.signal is None and any(word in last for word in _LOST_A_PEER)


def describe(seen: RankExit) -> str:
    """One line: which rank, where, how, and the last thing it said."""
    if seen.signal is not None:
        how = f"was killed by {_signal_name(seen.signal)}"
    elif seen.exit_code is not None:
        how = f"exited with code {seen.exit_code}"
    else:
        how = "vanished with its supervisor"
    last = _last_line(seen)
    return f"rank {seen.rank} on {seen.node} {how}" + (f": {last}" if last else "")


def _last_line(seen: RankExit) -> str:
    return next((line.strip() for line in reversed(seen.tail) if line.strip()), "")


def shell_code(seen: RankExit) -> int:
    """The exit code a shell would show: 128 + signal for a killed process."""
    if seen.signal is not None:
        return 128 + seen.signal
    return 1 if seen.exit_code is None else seen.exit_code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
