"""Who is late, told from what is seen of all ranks."""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

import pytest

from launchers.hang import describe_hang, in_collective, late_ranks
from launchers.messages import Look
from launchers.watchdog import main_stack

WAITING = ('File "/x/torch/distributed/distributed_c10d.py", line 2935 in all_reduce', 'File "/x/loop.py", line 1 in f')
READING = ('File "/x/data.py", line 7 in _batch', 'File "/x/loop.py", line 1 in f')


def look(rank: int, *, step: int = 5, stack: tuple[str, ...] = WAITING, state: str = "S") -> Look:
    return Look(
        rank=rank, node=f"n{rank // 2}", step=step, doing="step", silent_s=30.0, process_state=state, stack=stack
    )


@pytest.mark.parametrize(
    ("looks", "late"),
    [
        ([look(0), look(1), look(2, stack=(), state="T"), look(3)], [2]),
        ([look(0), look(1, step=4), look(2), look(3)], [1]),
        ([look(0), look(1), look(2), look(3, stack=READING)], [3]),
        ([look(0, stack=READING, step=6), look(1, step=5)], [1]),
        ([look(0), look(1)], []),
        ([look(0, stack=()), look(1, stack=())], []),
    ],
    ids=["stopped", "behind", "elsewhere", "behind-before-elsewhere", "all-wait", "none-answers"],
)
def test_the_late_rank_is_named_and_not_those_that_wait(looks: list[Look], late: list[int]) -> None:
    assert [look.rank for look in late_ranks(looks)] == late


def test_the_description_says_who_where_and_what() -> None:
    text = describe_hang([look(0), look(1), look(2, stack=(), state="T"), look(3)])
    assert "rank 2 on n1 is late in step 5" in text
    assert "process state T" in text
    assert "3 ranks wait" in text
    assert "all wait for each other" in describe_hang([look(0), look(1)])


def test_the_main_threads_frames_are_found_in_what_faulthandler_writes(tmp_path: Path) -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    with (tmp_path / "stacks").open("w+") as stream:
        faulthandler.dump_traceback(stream, all_threads=True)
        stream.seek(0)
        stack = main_stack(stream.read())
    stop.set()
    other.join()
    assert "test_the_main_threads_frames" in stack[0]
    assert not in_collective(stack)


def test_what_is_no_stack_is_none() -> None:
    assert main_stack("") == ()
