"""How a run ended, from what was seen."""

from __future__ import annotations

import pytest

from launchers.ending import decide, decide_afterwards, describe, first_failure, shell_code
from launchers.messages import Stop, StopCause
from pipeline.types import RankExit, RunState


def seen(
    rank: int, *, code: int | None = 0, signal: int | None = None, stopped: bool = False, tail: str = ""
) -> RankExit:
    return RankExit(
        rank=rank,
        node="n1",
        exit_code=code,
        signal=signal,
        stopped=stopped,
        tail=tuple(tail.splitlines()),
        time=float(rank),
    )


KILLED = seen(3, code=None, signal=9)
FAILED = seen(2, code=7, tail="Traceback\nValueError: no\n\n")
VANISHED = seen(1, code=None)
STOPPED = seen(0, code=None, signal=15, stopped=True)


@pytest.mark.parametrize(
    ("exit_", "text"),
    [
        (KILLED, "rank 3 on n1 was killed by SIGKILL"),
        (FAILED, "rank 2 on n1 exited with code 7: ValueError: no"),
        (VANISHED, "rank 1 on n1 vanished with its supervisor"),
        (seen(0, code=None, signal=99), "rank 0 on n1 was killed by signal 99"),
    ],
)
def test_an_exit_in_words(exit_: RankExit, text: str) -> None:
    assert describe(exit_) == text


def test_the_exit_code_a_shell_would_show() -> None:
    assert [shell_code(exit_) for exit_ in (KILLED, FAILED, VANISHED, seen(0))] == [137, 7, 1, 0]


def test_all_ranks_done_is_finished() -> None:
    assert decide([seen(0), seen(1)], None, ranks=2, now=1.0).state is RunState.finished


def test_the_first_failure_of_its_own_is_the_cause() -> None:
    stop = Stop(cause=StopCause.rank_failed, reason=describe(FAILED))
    end = decide([STOPPED, FAILED, KILLED], stop, ranks=4, now=1.0)
    assert (end.state, end.first) == (RunState.failed, FAILED)


@pytest.mark.parametrize(
    "last_words",
    [
        "RuntimeError: [pair.cc:553]... typically caused by a remote worker crashing. Check the logs",
        "RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:4242",
        "torch.distributed.DistBackendError: failed to recv, got 0 bytes",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exited or there was a"
        " network error",
    ],
)
def test_a_rank_that_lost_a_peer_is_not_the_cause_when_the_peer_is_known(last_words: str) -> None:
    bereaved = seen(1, code=1, tail=f"Traceback\n{last_words}\n")
    assert first_failure([bereaved]) is bereaved
    assert first_failure([bereaved, STOPPED, KILLED]) is KILLED
    assert first_failure([bereaved, VANISHED]) is VANISHED


@pytest.mark.parametrize(
    ("cause", "state"), [(StopCause.cancelled, RunState.cancelled), (StopCause.timeout, RunState.timeout)]
)
def test_ranks_that_were_told_to_stop_are_no_failure(cause: StopCause, state: RunState) -> None:
    end = decide([STOPPED], Stop(cause=cause, reason="m"), ranks=1, now=1.0)
    assert (end.state, end.first) == (state, None)


STOP = Stop(cause=StopCause.leader_lost, reason="lost")


@pytest.mark.parametrize(
    ("exits", "stops", "word", "cancel_asked", "state"),
    [
        ([], [], "COMPLETED", False, RunState.unknown),
        ([seen(0), seen(1)], [], "COMPLETED", False, RunState.finished),
        ([seen(0)], [], "COMPLETED", False, RunState.unknown),
        ([], [], "CANCELLED", False, RunState.cancelled),
        ([], [], "TIMEOUT", True, RunState.timeout),
        ([], [], "", True, RunState.cancelled),
        ([KILLED], [], "", False, RunState.failed),
        ([KILLED], [], "COMPLETED", False, RunState.failed),
        ([], [STOP], "", False, RunState.failed),
        ([], [], "NODE_FAIL", False, RunState.failed),
        ([], [], "OUT_OF_MEMORY", False, RunState.failed),
        ([], [], "", False, RunState.unknown),
    ],
)
def test_the_reaper_never_makes_up_a_cause(
    exits: list[RankExit], stops: list[Stop], word: str, cancel_asked: bool, state: RunState
) -> None:
    end = decide_afterwards(exits, stops, word, cancel_asked=cancel_asked, ranks=2, now=1.0)
    assert end.state is state
    assert end.slurm_state == word
