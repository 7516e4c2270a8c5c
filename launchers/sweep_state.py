"""What has become of each point of a sweep, from its batches, the claims and one question to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers.local import is_alive
from launchers.overview import Overview, handle_of_element, overviews
from pipeline.run_index import RunIndex
from pipeline.sweepdir import BatchDir, Claim, Claims, SweepDir, claims_of
from pipeline.types import Handle, LauncherKind, RunState

UNFINISHED_CLAIM_S = 900.0
"""How long a claim from another machine stands before its submitter counts as dead."""
EMPTY_CLAIM_S = 30.0
"""How long a claim may be empty: its maker writes it with the next system call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointState:
    """One point, now."""

    digest: str
    tries: int
    """How often it was claimed; 0: never."""
    run: Overview | None
    """Its newest run; None before there is one."""
    batch: BatchDir | None = None
    """The batch of this sweep that the run is part of."""
    being_submitted: bool = False
    """Somebody is about to submit it."""

    @property
    def label(self) -> str:
        """One word for people."""
        if self.being_submitted:
            return "SUBMITTING"
        if self.run is None or self.run.state is RunState.prepared:
            return "MISSING"
        return str(self.run.state.value)

    @property
    def is_to_run(self) -> bool:
        """Whether submitting the sweep again runs it: it is missing or failed."""
        ended_badly = self._state.is_final and self._state is not RunState.finished
        return not self.being_submitted and (self.label == "MISSING" or ended_badly)

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.being_submitted or self._state in (RunState.held, RunState.queued, RunState.running)

    @property
    def _state(self) -> RunState:
        return self.run.state if self.run else RunState.prepared


@dataclass(frozen=True, slots=True)
class _Member:
    run_id: str
    tries: int
    handle: Handle | None
    batch: BatchDir


def point_states(sweep: SweepDir, digests: Sequence[str], index: RunIndex) -> dict[str, PointState]:
    """The state of each point by digest; the scheduler is asked once."""
    claims = claims_of(sweep.run_root)
    tries = claims.tries(digests)
    members = _members(sweep)
    newest: dict[str, _Member] = {}
    claimed: dict[str, Claim | None] = {}
    for digest, number in tries.items():
        member = members.get(digest)
        if member and member.tries == number:
            newest[digest] = member
        else:
            claimed[digest] = claims.read(digest, number)
    run_ids = {digest: member.run_id for digest, member in newest.items()}
    run_ids |= {digest: claim.run_id for digest, claim in claimed.items() if claim}
    jobs = {member.run_id: member.handle for member in newest.values() if member.handle}
    seen = overviews(sweep.run_root, list(run_ids.values()), index, jobs)
    return {
        digest: PointState(
            digest=digest,
            tries=tries.get(digest, 0),
            run=seen.get(run_ids.get(digest, "")),
            batch=newest[digest].batch if digest in newest else None,
            being_submitted=_is_being_submitted(digest, tries, seen.get(run_ids.get(digest, "")), claims),
        )
        for digest in digests
    }


def _members(sweep: SweepDir) -> dict[str, _Member]:
    """The newest batch membership of each point."""
    found: dict[str, _Member] = {}
    for batch in sweep.batches():
        document = batch.read()
        if document is None:
            continue
        whole = batch.read_handle()
        for index, member in enumerate(document.members):
            found[member.digest] = _Member(
                member.run_id, member.tries, _handle_in(whole, index, len(document.members)), batch
            )
    return found


def _handle_in(whole: Handle | None, index: int, count: int) -> Handle | None:
    if whole is None or whole.launcher is LauncherKind.local:
        return None
    return handle_of_element(whole, index) if count > 1 else whole


def _is_being_submitted(digest: str, tries: Mapping[str, int], run: Overview | None, claims: Claims) -> bool:
    """Whether a claimed point without a complete submission has a submitter that may still complete it."""
    number = tries.get(digest, 0)
    if number == 0 or (run and run.state is not RunState.prepared and run.state is not RunState.held):
        return False
    claim = claims.read(digest, number)
    if claim is None:
        return claims.age_s(digest, number) < EMPTY_CLAIM_S
    alive = is_alive(claim.boot_id, claim.pid, claim.start_ticks)
    return time.time() - claim.time < UNFINISHED_CLAIM_S if alive is None else alive
