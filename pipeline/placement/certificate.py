"""Planned against found: what each rank saw of its own place, and where that is not what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.hardware.topology import format_ids
from pipeline.placement.binding import Binding, BindingFlag
from pipeline.placement.environment import COMPARED, binding_environment
from pipeline.placement.memory import MemoryMode

_GIB = 1 << 30


class Moment(Enum):
    """When a rank looked at itself."""

    start = "start"
    """Before it imported anything that starts threads."""
    model = "model"
    """With its model in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelMemory:
    """A memory policy in the kernel's words: default, preferred, preferred_many, bind and the like."""

    mode: str
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.mode, *map(str, self.nodes)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Something the kernel did not grant when a binding was applied."""

    what: str
    """`cpus` or `memory`."""
    asked: str
    error: str
    """Name of the error number: EPERM, EINVAL, ENOSYS."""

    def __str__(self) -> str:
        return f"{self.asked} was refused ({self.error})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """How far a binding was applied before the worker's first instruction."""

    affinity: bool
    """Whether the CPUs were set."""
    memory: KernelMemory | None
    """The policy that was set; None: none was."""
    refused: tuple[Refusal, ...]

    def refusals(self, what: str) -> tuple[Refusal, ...]:
        """What was refused of one kind."""
        return tuple(refusal for refusal in self.refused if refusal.what == what)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a rank's process found out about itself."""

    moment: Moment
    digest: str
    """Of the node's plan it was started with; empty: without one."""
    cpus: tuple[int, ...]
    memory: KernelMemory | None
    """None: the kernel doesn't say."""
    mems_allowed: tuple[int, ...] | None
    applied: Applied | None
    """None: nothing was asked to be applied."""
    environment: dict[str, str]
    """Variables that a binding sets, as they reached it; those that didn't are left out."""
    gpu: str | None = None
    """Bus id of the GPU it computes on; None: none, or not known."""
    page_bytes: dict[int, int] | None = None
    """Its memory by NUMA node; None: not looked, or the kernel doesn't say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCertificate:
    """One rank's place as it was planned and as it was found."""

    rank: int
    planned: Binding | None
    """None: nothing could be planned."""
    observed: tuple[Observation, ...]
    """In order of time; empty: it never reported."""
    flags: tuple[BindingFlag, ...]
    differences: tuple[str, ...]
    """Where it is not what was planned, though nobody said so: the rank is red."""
    denied: tuple[str, ...]
    """What of its binding the kernel refused, with nothing as good in its place."""
    warnings: tuple[str, ...]
    """Everything that could not be had, what was denied among it."""
    environment: dict[str, str]
    """Variables its binding implies."""

    @property
    def is_red(self) -> bool:
        """Whether the rank is not where it should be."""
        return bool(self.differences)


def certify(
    rank: int,
    planned: Binding | None,
    observed: Sequence[Observation],
    *,
    digest: str,
    declined: str | None = None,
) -> RankCertificate:
    """The certificate of one rank; `declined` is why it would not follow the plan, if so."""
    denied = () if planned is None else tuple(dict.fromkeys(_denied(planned, observed)))
    differences = [] if planned is None or declined else list(_differences(planned, observed, digest))
    return RankCertificate(
        rank=rank,
        planned=planned,
        observed=tuple(observed),
        flags=_flags(planned, observed, declined),
        differences=tuple(dict.fromkeys(differences)),
        denied=denied,
        warnings=tuple(dict.fromkeys((*_warnings(planned, observed, declined), *denied))),
        environment={} if planned is None or declined else _environment(planned),
    )


def node_flags(certificates: Iterable[RankCertificate]) -> list[str]:
    """All flags of a node's ranks, sorted."""
    return sorted({flag.value for certificate in certificates for flag in certificate.flags})


def table(certificates: Iterable[RankCertificate]) -> list[str]:
    """A node's certificates as lines for people."""
    return [_line(certificate) for certificate in certificates]


def _differences(planned: Binding, observed: Sequence[Observation], digest: str) -> Iterable[str]:
    for seen in observed:
        when = f"at its {seen.moment.value}" if seen.moment is Moment.start else "with its model built"
        found = (
            _digest_difference(seen, digest),
            _cpu_difference(planned, seen),
            _memory_difference(planned, seen),
            _gpu_difference(planned, seen),
            *_environment_differences(planned, seen),
        )
        yield from (f"{difference}, found {when}" for difference in found if difference is not None)


def _digest_difference(seen: Observation, digest: str) -> str | None:
    return None if seen.digest == digest else f"follows plan {seen.digest or 'none'} instead of {digest}"


def _cpu_difference(planned: Binding, seen: Observation) -> str | None:
    """A rank whose affinity was refused said so; one that was not to be bound may run anywhere."""
    if BindingFlag.unbound in planned.flags or _refused(seen, "cpus") or set(seen.cpus) == set(planned.cpus):
        return None
    return f"runs on CPUs {format_ids(seen.cpus)} instead of {format_ids(planned.cpus)}"


def _memory_difference(planned: Binding, seen: Observation) -> str | None:
    wanted = _wanted_memory(planned, seen)
    if wanted is None or seen.memory is None or _same(wanted, seen.memory):
        return None
    return f"has memory policy {seen.memory} instead of {wanted}"


def _wanted_memory(planned: Binding, seen: Observation) -> KernelMemory | None:
    """As planned, or what the kernel granted in its place; None: anything goes."""
    if planned.memory.mode is MemoryMode.none or _refused(seen, "cpus"):
        return None
    if seen.applied is not None and seen.applied.refusals("memory"):
        return seen.applied.memory
    mode = "bind" if planned.memory.mode is MemoryMode.bind else "preferred_many"
    return KernelMemory(mode=mode, nodes=planned.memory.nodes)


def _same(a: KernelMemory, b: KernelMemory) -> bool:
    return a.mode == b.mode and set(a.nodes) == set(b.nodes)


def _gpu_difference(planned: Binding, seen: Observation) -> str | None:
    if planned.gpu is None or seen.gpu is None or planned.gpu == seen.gpu:
        return None
    return f"computes on GPU {seen.gpu} instead of {planned.gpu}"


def _environment(planned: Binding) -> dict[str, str]:
    return {variable.name: variable.value for variable in binding_environment(planned)}


def _environment_differences(planned: Binding, seen: Observation) -> Iterable[str]:
    """NICs and thread counts reach the libraries this way only."""
    for name, value in _environment(planned).items():
        found = seen.environment.get(name)
        if name in COMPARED and found != value:
            yield f"has {name} {'unset' if found is None else found} instead of {value}"


def _refused(seen: Observation, what: str) -> bool:
    return seen.applied is not None and bool(seen.applied.refusals(what))


def _flags(planned: Binding | None, observed: Sequence[Observation], declined: str | None) -> tuple[BindingFlag, ...]:
    found = set(planned.flags) if planned is not None else {BindingFlag.unbound}
    if declined or not observed:
        found.add(BindingFlag.degraded)
    if declined or any(_refused(seen, "cpus") for seen in observed):
        found.add(BindingFlag.unbound)
    if planned is not None and any(_fell_back(planned, seen) for seen in observed):
        found.add(BindingFlag.fallback)
    if len(found) > 1:
        found.discard(BindingFlag.exact)
    return tuple(flag for flag in BindingFlag if flag in found)


def _fell_back(planned: Binding, seen: Observation) -> bool:
    """An old kernel that prefers one node only is no fallback: it is as good as it gets there."""
    if seen.applied is None or not seen.applied.refusals("memory"):
        return False
    granted = seen.applied.memory
    return granted is None or (planned.memory.mode is MemoryMode.bind and granted.mode != "bind")


def _warnings(planned: Binding | None, observed: Sequence[Observation], declined: str | None) -> Iterable[str]:
    if planned is not None:
        yield from planned.warnings
    if declined:
        yield declined
    if not observed:
        yield "never reported where it runs"


def _denied(planned: Binding, observed: Sequence[Observation]) -> Iterable[str]:
    for seen in observed:
        if seen.applied is not None and (_refused(seen, "cpus") or _fell_back(planned, seen)):
            yield from map(str, seen.applied.refused)


def _line(certificate: RankCertificate) -> str:
    planned, last = certificate.planned, certificate.observed[-1] if certificate.observed else None
    cells = [
        f"rank {certificate.rank}",
        f"CPUs {format_ids(last.cpus) if last else '?'}",
        f"node {planned.home if planned and planned.home is not None else '?'}",
        f"memory {last.memory if last and last.memory else '?'}",
        f"pages {_pages(last)}",
        f"GPU {(last and last.gpu) or (planned and planned.gpu) or 'none'}",
        f"NIC {planned.nics[0] if planned and planned.nics else 'none'}",
        "RED" if certificate.is_red else ",".join(flag.value for flag in certificate.flags),
    ]
    return "  ".join(cells)


def _pages(seen: Observation | None) -> str:
    if seen is None or not seen.page_bytes:
        return "?"
    return " ".join(f"N{node}={size / _GIB:.2f} GiB" for node, size in sorted(seen.page_bytes.items()))
