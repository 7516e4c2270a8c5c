"""What a node is against what its hardware profile expects (rule R12): both sides, never computed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.hardware.topology import NodeSnapshot
from pipeline.placement.nics import active_rate, fabric_nics
from pipeline.types import HardwareProfile

_MIB = 1 << 20
_GIB = 1 << 30
_MEMORY_TOLERANCE = 0.01
"""Of GPU memory: drivers report a few MiB more or less of one board."""
_HOST_MEMORY_TOLERANCE = 0.1
"""Of host memory: firmware and kernel keep a part, nominal sizes are of either kind of gigabyte."""


class Agreement(Enum):
    """How one expectation of a profile stands."""

    same = "as expected"
    differs = "differs"
    not_found = "not found"
    """The profile expects something, the node doesn't say."""
    not_expected = "no expectation"
    """The node says something, the profile doesn't."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One thing as the profile has it and as the node shows it."""

    what: str
    expected: str
    """For people; alternatives as `3 or 6`, `unknown` without an expectation."""
    found: str
    """For people; `unknown` where the node doesn't say."""
    agreement: Agreement

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


def compare_with_profile(profile: HardwareProfile, snapshot: NodeSnapshot) -> tuple[Comparison, ...]:
    """Every expectation of the profile about a node, and what the node shows of it.

    A profile without GPUs expects nothing of GPUs and NICs. What of both is unknown is left out.
    """
    rows = (*_of_gpus(profile, snapshot), *_of_nics(profile, snapshot), *_of_host(profile, snapshot))
    return tuple(row for row in rows if (row.expected, row.found) != (_UNKNOWN, _UNKNOWN))


def drift(profile: HardwareProfile, snapshot: NodeSnapshot) -> tuple[Comparison, ...]:
    """Where the node is not what the profile expects."""
    return tuple(row for row in compare_with_profile(profile, snapshot) if row.agreement is Agreement.differs)


_UNKNOWN = "unknown"


def _of_gpus(profile: HardwareProfile, snapshot: NodeSnapshot) -> Iterator[Comparison]:
    if profile.gpus_per_node == 0:
        return
    known, spec, gpus = "gpus" not in snapshot.untold, profile.gpu_spec, snapshot.gpus
    yield _one_of("GPUs", [profile.gpus_per_node], len(gpus) if known else None)
    yield _texts("GPU", profile.gpu, (gpu.name for gpu in gpus))
    if spec is None:
        return
    yield _texts("GPU device id", spec.pci_device_id, (gpu.pci_device_id for gpu in gpus))
    memory = None if spec.memory_mib_nvidia_smi is None else float(spec.memory_mib_nvidia_smi)
    found = [None if gpu.memory_bytes is None else gpu.memory_bytes / _MIB for gpu in gpus]
    yield _numbers("GPU memory", memory, found, unit="MiB", tolerance=_MEMORY_TOLERANCE)
    yield _numbers("GPU power limit", spec.power_watts, [gpu.power_limit_watts for gpu in gpus], unit="W")


def _of_nics(profile: HardwareProfile, snapshot: NodeSnapshot) -> Iterator[Comparison]:
    if profile.gpus_per_node == 0 or "nics" in snapshot.untold:
        return
    node = profile.node_spec
    nics = fabric_nics(snapshot, excluded=node.excluded_nics)
    yield _one_of("compute NICs", node.nics_per_node, len(nics))
    if nics:
        yield _numbers("NIC rate", node.nic_gbit_per_s, [active_rate(nic) for nic in nics], unit="Gbit/s")
    here = {name for nic in snapshot.nics for name in (nic.name, nic.bdf)}
    missing = [name for name in node.excluded_nics if name not in here]
    if missing:
        yield Comparison(
            what="excluded NICs",
            expected=" ".join(node.excluded_nics),
            found=f"no {' '.join(missing)}",
            agreement=Agreement.differs,
        )


def _of_host(profile: HardwareProfile, snapshot: NodeSnapshot) -> Iterator[Comparison]:
    node, known = profile.node_spec, "cpus" not in snapshot.untold
    yield _one_of("NUMA nodes with CPUs", node.numa_nodes, (len(snapshot.cpu_nodes()) or None) if known else None)
    yield _one_of("cores", _some(node.cores_per_node), len(snapshot.cores) if known else None)
    yield _one_of("CPUs", _some(profile.cpus_per_node), len(snapshot.online) if known else None)
    yield _numbers(
        "host memory", node.host_memory_gib, [host_memory_gib(snapshot)], unit="GiB", tolerance=_HOST_MEMORY_TOLERANCE
    )


def _some(number: int | None) -> list[int]:
    return [] if number is None else [number]


def host_memory_gib(snapshot: NodeSnapshot) -> float | None:
    """Memory of the NUMA nodes with CPUs, GiB (others are GPU memory); None where one doesn't say."""
    sizes = [node.memory_total_bytes for node in snapshot.cpu_nodes()]
    return sum(size for size in sizes if size is not None) / _GIB if sizes and None not in sizes else None


def _one_of(what: str, allowed: Sequence[int], found: int | None) -> Comparison:
    expected = " or ".join(map(str, allowed)) or _UNKNOWN
    shown = _UNKNOWN if found is None else str(found)
    agreement = _agreement(is_expected=bool(allowed), is_found=found is not None, is_same=found in allowed)
    return Comparison(what=what, expected=expected, found=shown, agreement=agreement)


def _texts(what: str, expected: str | None, found: Iterable[str | None]) -> Comparison:
    seen = sorted({text for text in found if text is not None})
    is_same = {text.casefold() for text in seen} == {(expected or "").casefold()}
    agreement = _agreement(is_expected=expected is not None, is_found=bool(seen), is_same=is_same)
    return Comparison(what=what, expected=expected or _UNKNOWN, found=", ".join(seen) or _UNKNOWN, agreement=agreement)


def _numbers(
    what: str, expected: float | None, found: Iterable[float | None], *, unit: str, tolerance: float = 0.0
) -> Comparison:
    """Of several devices each must be within `tolerance` (relative) of what is expected."""
    seen = sorted({round(number, 1) for number in found if number is not None})
    is_same = expected is not None and all(abs(number - expected) <= tolerance * expected for number in seen)
    return Comparison(
        what=what,
        expected=_UNKNOWN if expected is None else f"{_number(expected)} {unit}",
        found=f"{', '.join(map(_number, seen))} {unit}" if seen else _UNKNOWN,
        agreement=_agreement(is_expected=expected is not None, is_found=bool(seen), is_same=is_same),
    )


def _number(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _agreement(*, is_expected: bool, is_found: bool, is_same: bool) -> Agreement:
    if not is_found:
        return Agreement.not_found
    if not is_expected:
        return Agreement.not_expected
    return Agreement.same if is_same else Agreement.differs
