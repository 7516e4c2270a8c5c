"""The node leader's part in binding: takes the snapshot, plans all local ranks, collects what they find of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cattrs

from launchers.messages import Declined, Hello, Placed
from launchers.node_files import NodeFiles
from pipeline.hardware.nvml import read_nvml
from pipeline.hardware.recording import to_document
from pipeline.hardware.snapshot import read_snapshot
from pipeline.hardware.topology import NodeSnapshot, TaskMask, TopologyError
from pipeline.hardware.visibility import visible_gpus
from pipeline.placement.binding import Binding, bind, spare_cpus
from pipeline.placement.certificate import Moment, Observation, RankCertificate, certify, node_flags, table
from pipeline.placement.drift import Comparison, drift
from pipeline.placement.environment import scrubbed_variables
from pipeline.placement.policy import BindingPolicy, LocalRank
from pipeline.rundir import from_jsonable, to_jsonable
from pipeline.types import HardwareProfile

PLACING_LIMIT_S = 20.0
"""How long reading sysfs may take before the ranks start without a binding."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """What was planned for the ranks of one node."""

    snapshot: NodeSnapshot | None = None
    bindings: tuple[Binding, ...] = ()
    spare: tuple[int, ...] = ()
    """CPUs no rank was given."""
    drift: tuple[Comparison, ...] = ()
    """Where the node is not what the hardware profile expects."""
    failure: str | None = None
    """Why there are no bindings."""

    @property
    def digest(self) -> str:
        """Identifies the plan; empty where there is none."""
        if not self.bindings:
            return ""
        text = json.dumps(to_jsonable(self.bindings), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def placed(self, rank: int) -> Placed:
        """What one rank is told."""
        binding = next((binding for binding in self.bindings if binding.rank == rank), None)
        return Placed(binding=binding, digest=self.digest, spare=self.spare)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCertificate:
    """`binding/<node>.json`: where the ranks of one node were put, as planned and as found."""

    node: str
    digest: str
    flags: list[str]
    red: list[int]
    """Ranks that are not where they should be."""
    warnings: list[str]
    profile: str
    """Name of the hardware profile."""
    drift: list[Comparison]
    """Where the node is not what the profile expects."""
    snapshot: dict[str, Any] | None
    scrubbed: list[str]
    """Inherited variables that were kept from the workers."""
    spare: tuple[int, ...]
    ranks: list[RankCertificate]


class NodePlacing:
    """Plans the places of one node's ranks and certifies them, once."""

    def __init__(
        self,
        node: str,
        *,
        files: NodeFiles,
        policy: BindingPolicy,
        profile: HardwareProfile,
        is_strict: bool,
        uses_gpus: bool,
        environ: Mapping[str, str],
    ) -> None:
        """`is_strict` refuses a node that is not what the profile expects."""
        self._node = node
        self._files = files
        self._policy = policy
        self._profile = profile
        self._is_strict = is_strict
        self._uses_gpus = uses_gpus
        self._environ = environ
        self._ranks: list[int] = []
        self._plan = NodePlan(failure="the ranks of the node were never complete")
        self._seen: dict[tuple[int, Moment], Observation] = {}
        self._declined: dict[int, str] = {}
        self._is_certified = False

    async def place(self, hellos: Sequence[Hello]) -> dict[int, Placed]:
        """What every rank of the node is told about its place; a node that can't be read leaves them unbound."""
        self._ranks = sorted(hello.rank for hello in hellos)
        try:
            self._plan = await _in_thread(lambda: self._make_plan(hellos), PLACING_LIMIT_S)
        except (TopologyError, OSError, ValueError) as error:
            self._plan = NodePlan(failure=f"the ranks of {self._node} are not bound: {error or type(error).__name__}")
            self._warn(None, str(self._plan.failure))
        self._note_drift()
        return {rank: self._plan.placed(rank) for rank in self._ranks}

    @property
    def refusal(self) -> str | None:
        """Why this node may not train; None where it may, or where nobody was strict about it."""
        if not self._is_strict:
            return None
        if self._plan.snapshot is None:
            return f"{self._node} could not be compared with profile {self._profile.name}: {self._plan.failure}"
        if not self._plan.drift:
            return None
        found = "; ".join(map(str, self._plan.drift))
        return (
            f"{self._node} is not what profile {self._profile.name} expects: {found}; correct the profile, keep the "
            f"node out, or leave out cluster.strict_profile"
        )

    def observe(self, rank: int, data: Mapping[str, Any]) -> None:
        """Takes what a worker found; the certificate is written once all have reported with their model built."""
        try:
            seen = from_jsonable(data, Observation)
        except (cattrs.BaseValidationError, KeyError, TypeError, ValueError):
            self._warn(rank, f"rank {rank} reported its place in a form that can't be read")
            return
        self._seen[rank, seen.moment] = seen
        if self._ranks and all((one, Moment.model) in self._seen for one in self._ranks):
            self.finish()

    def decline(self, declined: Declined) -> None:
        """Takes note of a rank that does not follow the plan."""
        self._declined[declined.rank] = declined.reason
        self._warn(declined.rank, declined.reason)

    def finish(self) -> None:
        """Writes the certificate with what is known, unless it is written."""
        if self._is_certified or not self._ranks:
            return
        self._is_certified = True
        certificate = self._certificate()
        self._files.certificate(certificate)
        for one in certificate.ranks:
            for difference in one.differences:
                self._warn(one.rank, f"rank {one.rank} {difference}")
            for refusal in one.denied:
                self._warn(one.rank, f"rank {one.rank}: {refusal}")
        for line in (*table(certificate.ranks), *certificate.warnings):
            self._files.line(None, f"binding: {line}")
        found = {
            "flags": certificate.flags,
            "red": certificate.red,
            "warnings": certificate.warnings,
            "drift": [str(one) for one in certificate.drift],
        }
        self._files.event("binding", found, rank=None)

    def _note_drift(self) -> None:
        """Says where the node is another than expected; one that is refused starts nobody who would certify it."""
        for one in self._plan.drift:
            self._files.line(None, f"profile {self._profile.name}: {one}")
        if self.refusal is not None:
            self.finish()

    def _make_plan(self, hellos: Sequence[Hello]) -> NodePlan:
        snapshot = self._snapshot(hellos)
        ranks = [LocalRank(local_rank=hello.local_rank, rank=hello.rank) for hello in hellos]
        bindings = bind(snapshot, ranks, self._policy)
        return NodePlan(
            snapshot=snapshot,
            bindings=bindings,
            spare=spare_cpus(snapshot, bindings),
            drift=drift(self._profile, snapshot),
        )

    def _snapshot(self, hellos: Sequence[Hello]) -> NodeSnapshot:
        allowed = tuple(sorted({cpu for hello in hellos for cpu in hello.cpus}))
        tasks = [TaskMask(local_rank=hello.local_rank, cpus=hello.cpus) for hello in hellos if hello.cpus != allowed]
        snapshot = read_snapshot(allowed=allowed, tasks=tasks, nvml=read_nvml())
        # Ranks that compute on the CPU are spread over all nodes, whatever GPUs there are.
        gpus = visible_gpus(snapshot.gpus, self._environ, ranks=len(hellos)) if self._uses_gpus else ()
        return dataclasses.replace(snapshot, job_gpus=gpus)

    def _certificate(self) -> NodeCertificate:
        plan = self._plan
        ranks = [self._certify(rank) for rank in self._ranks]
        warnings = [plan.failure] if plan.failure else []
        return NodeCertificate(
            node=self._node,
            digest=plan.digest,
            flags=node_flags(ranks),
            red=[one.rank for one in ranks if one.is_red],
            warnings=warnings + _summed_up((one.rank, warning) for one in ranks for warning in one.warnings),
            profile=self._profile.name,
            drift=list(plan.drift),
            snapshot=to_document(plan.snapshot) if plan.snapshot else None,
            scrubbed=[scrub.name for scrub in scrubbed_variables(self._environ)],
            spare=plan.spare,
            ranks=ranks,
        )

    def _certify(self, rank: int) -> RankCertificate:
        return certify(
            rank,
            self._plan.placed(rank).binding,
            [self._seen[rank, moment] for moment in Moment if (rank, moment) in self._seen],
            digest=self._plan.digest,
            declined=self._declined.get(rank),
        )

    def _warn(self, rank: int | None, message: str) -> None:
        self._files.event("warning", {"message": message}, rank=rank)
        self._files.line(rank, message)


def _summed_up(warnings: Iterable[tuple[int, str]]) -> list[str]:
    """Each warning once, with the ranks it is about."""
    ranks: dict[str, list[int]] = {}
    for rank, warning in warnings:
        ranks.setdefault(warning, []).append(rank)
    return [f"ranks {', '.join(map(str, about))}: {warning}" for warning, about in ranks.items()]


async def _in_thread(work: Callable[[], T], limit_s: float) -> T:
    """Runs `work` in a thread nobody waits for once the limit is over; raises TimeoutError, an OSError, then."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not result.done():
            set_it(value)

    def run() -> None:
        try:
            answer = (result.set_result, work())
        except Exception as error:  # handed over to whoever waits
            answer = (result.set_exception, error)  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *answer)

    threading.Thread(target=run, name="placing", daemon=True).start()
    return await asyncio.wait_for(result, limit_s)
