"""What is done about each cause: whether another attempt follows, how often, and which nodes it keeps away from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.types import Cause, End, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What is done about one cause."""

    retries: int | None
    """Attempts of one run that this cause may cost; None: as many as `cluster.max_attempts` gives."""
    excludes_nodes: bool = False
    """Whether the next attempt keeps away from the nodes that the cause points to."""


POLICIES = {
    # Nothing is wrong with the run: it goes on where it was.
    Cause.preempted: Policy(retries=None),
    Cause.timeout: Policy(retries=None),
    # The machine: again, elsewhere, but not for ever.
    Cause.node_failure: Policy(retries=3, excludes_nodes=True),
    Cause.gpu_fault: Policy(retries=3, excludes_nodes=True),
    Cause.network: Policy(retries=3),
    Cause.hang: Policy(retries=2, excludes_nodes=True),
    # The run itself: it would fail again, or worse, not fail and hide that it had.
    Cause.user_error: Policy(retries=0),
    Cause.cuda_oom: Policy(retries=0),
    Cause.host_oom: Policy(retries=0),
    Cause.numerics: Policy(retries=0),
    # Somebody wants it to be over.
    Cause.cancelled: Policy(retries=0),
    # Nobody knows: a person has to look.
    Cause.unknown: Policy(retries=0),
}


def may_continue(ends: Sequence[End], *, max_attempts: int) -> bool:
    """Whether another attempt follows the last of these ends, which are those of all attempts of a run, in order."""
    last = ends[-1]
    if last.state is RunState.finished or last.cause is None or len(ends) >= max_attempts:
        return False
    retries = POLICIES[last.cause].retries
    if retries is None:
        return _made_progress(ends)
    return sum(end.cause is last.cause for end in ends) <= retries


def excluded_nodes(ends: Sequence[End]) -> tuple[str, ...]:
    """Nodes that the next attempt keeps away from: the suspects of all attempts whose policy says so."""
    named = {node for end in ends if end.cause and POLICIES[end.cause].excludes_nodes for node in end.suspects}
    return tuple(sorted(named))


def _made_progress(ends: Sequence[End]) -> bool:
    """A run that reaches no new step within its time limit never will; one that was preempted may be luckier."""
    last = ends[-1]
    if last.cause is not Cause.timeout:
        return True
    before = max((end.step or 0 for end in ends[:-1]), default=0)
    return (last.step or 0) > before
