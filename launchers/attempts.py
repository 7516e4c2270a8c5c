"""From one attempt of a run to the next: how an attempt begins, is closed where it was cut off, and is gone on from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import cattrs

from launchers.ending import decide_afterwards
from launchers.messages import Stop
from launchers.policy import may_continue
from pipeline.checkpoints import newest_whole
from pipeline.rundir import AttemptDir, RunDir, from_jsonable, write_json
from pipeline.tracking.journal import Event, read_events
from pipeline.types import Cause, End, RankExit, RunState

Kind = TypeVar("Kind")


def begin_attempt(run: RunDir, *, first: int, restarts: int) -> AttemptDir:
    """The attempt that a job's start number `restarts` is, where its submission was attempt `first`.

    The same job was started before: the attempt before it gets its end, if it could not write it, and this one its
    handle. Called by the job's leader only.
    """
    attempt = run.attempt(first + restarts)
    handle = run.attempt(first).read_handle()
    if restarts == 0 or handle is None:
        return attempt
    for earlier in run.attempts():
        if earlier.number < attempt.number:
            close_cut_off(run, earlier)
    write_json(attempt.handle_file, replace(handle, attempt=attempt.number, restarts=restarts))
    return attempt


def close_cut_off(run: RunDir, attempt: AttemptDir) -> None:
    """Gives an attempt that could not say goodbye the end that its journals tell; the job went on, so the run does."""
    end = attempt.read_end()
    if end is None:
        end = afterwards(run, attempt, "")
        if end.state is RunState.unknown:
            end = replace(end, message="cut off without a word; the scheduler started the job again")
    if end.decided_by_scheduler:
        end = replace(end, state=RunState.preempted, cause=Cause.preempted, decided_by_scheduler=False)
    if not end.continues:
        write_json(attempt.end_file, replace(end, continues=True))


def afterwards(run: RunDir, attempt: AttemptDir, scheduler_word: str) -> End:
    """How an attempt ended whose supervisors did not write it down, as far as its journals and the scheduler tell."""
    events = journal_events(attempt)
    end = decide_afterwards(
        _of_kind(events, "exit", RankExit),
        _of_kind(events, "stop", Stop),
        scheduler_word,
        cancel_asked=attempt.cancel_file.exists(),
        ranks=run.read_plan().layout.ranks,
        now=time.time(),
    )
    return with_step(run, end)


def with_step(run: RunDir, end: End) -> End:
    """The end with the step that another attempt would go on from."""
    newest = newest_whole(run)
    return replace(end, step=newest.step if newest else None)


def with_outlook(run: RunDir, attempt: AttemptDir, end: End) -> End:
    """The end of the newest attempt with its step and whether another one follows."""
    end = with_step(run, end)
    if end.step is not None and end.state is not RunState.finished:
        end = replace(end, message=f"{end.message}; step {end.step} is saved")
    return replace(end, continues=may_continue([*earlier_ends(run, attempt), end], max_attempts=_max_attempts(run)))


def earlier_ends(run: RunDir, attempt: AttemptDir) -> list[End]:
    """The ends of the attempts before this one, as far as they are known."""
    ends = (earlier.read_end() for earlier in run.attempts() if earlier.number < attempt.number)
    return [end for end in ends if end is not None]


def _max_attempts(run: RunDir) -> int:
    return run.read_experiment().cluster.max_attempts


def journal_events(attempt: AttemptDir) -> list[Event]:
    """All events of an attempt, in the order of their times."""
    events: list[Event] = []
    for path in sorted(attempt.journal_dir.glob("*.jsonl")):
        offset = -1
        chunk = read_events(path)
        while chunk.offset != offset:
            events += chunk.events
            offset = chunk.offset
            chunk = read_events(path, offset)
    return sorted(events, key=lambda event: event.time)


def _of_kind(events: Sequence[Event], kind: str, into: type[Kind]) -> list[Kind]:
    found = []
    for event in events:
        if event.kind == kind:
            try:
                found.append(from_jsonable(event.data, into))
            except cattrs.BaseValidationError:
                continue  # written by another version: it can't tell us how it ended
    return found
