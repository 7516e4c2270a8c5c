"""Of what kind a failure was, and what is done about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launchers.causes import KERNEL_OOM, cause_of, cause_of_exit, cause_of_lines
from launchers.messages import Stop, StopCause
from launchers.policy import POLICIES, excluded_nodes, may_continue
from pipeline.types import Cause, End, RankExit, RunState, WorkerCode

REPORTED = yaml.safe_load(Path(__file__).with_name("failure_lines.yaml").read_text(encoding="utf-8"))


def exit_of(*, code: int | None = 1, signal: int | None = None, tail: tuple[str, ...] = ()) -> RankExit:
    return RankExit(rank=1, node="n1", exit_code=code, signal=signal, stopped=False, tail=tail, time=1.0)


def end_of(cause: Cause | None, *, step: int | None = None, suspects: tuple[str, ...] = ()) -> End:
    state = RunState.finished if cause is None else RunState.failed
    return End(state=state, message="m", first=None, time=1.0, cause=cause, step=step, suspects=suspects)


@pytest.mark.parametrize("report", REPORTED, ids=lambda report: report["source"])
def test_a_line_that_people_reported_is_recognised(report: dict[str, str]) -> None:
    assert cause_of_lines([report["line"]]) is Cause(report["cause"])


def test_lines_of_a_healthy_run_have_no_cause() -> None:
    said = ["step 40 train/loss 2.9 throughput/tokens_per_s 5373", "checkpoint: 1.2 s", "nan_policy: warn", "Rank 12"]
    assert cause_of_lines(said) is None


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (exit_of(code=WorkerCode.user_error), Cause.user_error),
        (exit_of(code=WorkerCode.refused), Cause.user_error),
        (exit_of(code=WorkerCode.numerics), Cause.numerics),
        (exit_of(code=WorkerCode.hardware), Cause.gpu_fault),
        (exit_of(code=WorkerCode.network), Cause.network),
        (
            exit_of(tail=("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'x'")),
            Cause.user_error,
        ),
        (exit_of(code=None, signal=9), Cause.unknown),
        (exit_of(code=None, signal=9, tail=(KERNEL_OOM,)), Cause.host_oom),
        (exit_of(code=None, signal=11), Cause.unknown),
        (exit_of(tail=("ValueError: no",)), Cause.unknown),
    ],
)
def test_an_exit_has_its_cause(seen: RankExit, cause: Cause) -> None:
    assert cause_of_exit(seen) is cause


@pytest.mark.parametrize(
    ("first", "stops", "word", "cause"),
    [
        (None, [StopCause.node_lost], "", Cause.node_failure),
        (None, [StopCause.hang], "", Cause.hang),
        (None, [], "NODE_FAIL", Cause.node_failure),
        (None, [], "OUT_OF_MEMORY", Cause.host_oom),
        (None, [], "", Cause.unknown),
        (exit_of(), [StopCause.rank_failed], "FAILED", Cause.unknown),
        (exit_of(code=WorkerCode.numerics), [StopCause.rank_failed], "", Cause.numerics),
    ],
)
def test_an_end_has_its_cause(first: RankExit | None, stops: list[StopCause], word: str, cause: Cause) -> None:
    told = [Stop(cause=stop, reason="r") for stop in stops]
    assert cause_of(first, told, word, lost_a_peer=False) is cause


def test_ranks_that_only_lost_each_other_point_to_the_network() -> None:
    assert cause_of(exit_of(), [], "", lost_a_peer=True) is Cause.network


def test_every_cause_has_a_policy() -> None:
    assert set(POLICIES) == set(Cause)


@pytest.mark.parametrize(
    "cause", [Cause.user_error, Cause.numerics, Cause.cuda_oom, Cause.host_oom, Cause.cancelled, Cause.unknown]
)
def test_what_would_fail_again_or_what_nobody_knows_is_never_tried_again(cause: Cause) -> None:
    assert not may_continue([end_of(cause, step=5)], max_attempts=10)


@pytest.mark.parametrize("cause", [Cause.node_failure, Cause.gpu_fault, Cause.network, Cause.hang])
def test_the_machines_fault_is_tried_again_so_many_times(cause: Cause) -> None:
    retries = POLICIES[cause].retries
    assert retries
    ends = [end_of(cause)] * (retries + 1)
    assert may_continue(ends[:-1], max_attempts=100)
    assert not may_continue(ends, max_attempts=100)


def test_preemption_is_only_bounded_by_the_attempts_of_a_run() -> None:
    ends = [end_of(Cause.preempted)] * 10
    assert may_continue(ends[:9], max_attempts=10)
    assert not may_continue(ends, max_attempts=10)
    assert not may_continue(ends[:1], max_attempts=1)


def test_a_time_limit_that_no_step_fits_into_is_not_tried_for_ever() -> None:
    assert may_continue([end_of(Cause.timeout, step=10)], max_attempts=10)
    assert may_continue([end_of(Cause.timeout, step=10), end_of(Cause.timeout, step=20)], max_attempts=10)
    assert not may_continue([end_of(Cause.timeout, step=10), end_of(Cause.timeout, step=10)], max_attempts=10)
    assert not may_continue([end_of(Cause.timeout)], max_attempts=10)


def test_a_finished_run_is_over() -> None:
    assert not may_continue([end_of(None)], max_attempts=10)


def test_the_next_attempt_keeps_away_from_suspects_of_causes_that_are_a_nodes_fault() -> None:
    ends = [
        end_of(Cause.hang, suspects=("n3",)),
        end_of(Cause.preempted, suspects=("n1",)),
        end_of(Cause.gpu_fault, suspects=("n2", "n3")),
    ]
    assert excluded_nodes(ends) == ("n2", "n3")
