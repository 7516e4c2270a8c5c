"""How an attempt ended, decided from what was seen: pure functions, used by rank 0's supervisor and by `status`."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from launchers.messages import Stop, StopCause
from pipeline.types import End, RankExit, RunState

_STATES = {
    StopCause.rank_failed: RunState.failed,
    StopCause.rank_lost: RunState.failed,
    StopCause.node_lost: RunState.failed,
    StopCause.leader_lost: RunState.failed,
    StopCause.not_complete: RunState.failed,
    StopCause.refused: RunState.failed,
    StopCause.cancelled: RunState.cancelled,
    StopCause.timeout: RunState.timeout,
}

_SLURM_STATES = {
    "COMPLETED": RunState.finished,
    "CANCELLED": RunState.cancelled,
    "PREEMPTED": RunState.cancelled,
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

    `exits` are in the order they were seen; `stop` is what ended the run early, if anything did.
    """
    first = first_failure(exits)
    if stop is not None:
        known = first if stop.cause in (StopCause.rank_failed, StopCause.rank_lost) else None
        return End(state=_STATES[stop.cause], message=stop.reason, first=known, time=now)
    if first is not None:
        return End(state=RunState.failed, message=describe(first), first=first, time=now)
    return End(state=RunState.finished, message=f"all {ranks} ranks finished", first=None, time=now)


def decide_afterwards(
    exits: Sequence[RankExit], stops: Sequence[Stop], scheduler_word: str, *, cancel_asked: bool, ranks: int, now: float
) -> End:
    """The end of an attempt whose supervisors could not write it down.

    `exits` and `stops` come from the journals, `scheduler_word` is the scheduler's state, empty when it knows none.
    """
    first = first_failure(exits)
    said = _SLURM_STATES.get(scheduler_word)
    if cancel_asked or said in (RunState.cancelled, RunState.timeout):
        state = said if said is RunState.timeout else RunState.cancelled
        message = "cancelled through himori" if cancel_asked else f"ended by the scheduler: {scheduler_word}"
        return End(state=state, message=message, first=None, time=now, slurm_state=scheduler_word)
    if first is not None or stops:
        message = describe(first) if first is not None else stops[0].reason
        return End(state=RunState.failed, message=message, first=first, time=now, slurm_state=scheduler_word)
    if said is RunState.failed:
        message = f"the scheduler says {scheduler_word}; no supervisor could say more, see `himori logs`"
        return End(state=said, message=message, first=None, time=now, slurm_state=scheduler_word)
    if said is RunState.finished and len(exits) == ranks:
        message = f"all {ranks} ranks finished"
        return End(state=said, message=message, first=None, time=now, slurm_state=scheduler_word)
    message = "its processes are gone and nobody could say why" + (f"; scheduler: {scheduler_word}" if said else "")
    return End(state=RunState.unknown, message=message, first=None, time=now, slurm_state=scheduler_word)


def first_failure(exits: Sequence[RankExit]) -> RankExit | None:
    """The first exit that was a failure of its own and no consequence of being told to stop.

    A rank that died of its peers' end may be reported before the peer it lost: one with a cause of its own goes first.
    """
    failed = [seen for seen in exits if seen.exit_code != 0 and not seen.stopped]
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
