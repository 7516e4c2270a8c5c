"""A hardware profile written from what a node shows; what it doesn't show stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from pipeline.hardware.topology import Gpu, LinkLayer, Nic, NodeSnapshot, TopologyError
from pipeline.placement.drift import host_memory_gib
from pipeline.placement.nics import active_rate, fabric_nics
from pipeline.types import Evidence, GpuSpec, HardwareProfile, NodeSpec

_MIB = 1 << 20
_SAME_MEMORY = 0.01
"""Relative; two boards of one name differ by more (80 and 94 GB)."""
_FABRICS = {
    LinkLayer.infiniband: "InfiniBand",
    LinkLayer.ethernet: "Ethernet (RoCE)",
    LinkLayer.unspecified: "a transport of its own (EFA and the like)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewProfile:
    """A profile as it is to be written."""

    profile: HardwareProfile
    gpu_option: str | None
    """The shipped numbers of its GPU, an option of hardware/gpu; None: `profile.gpu_spec` has what the node shows."""


def profile_of(
    snapshot: NodeSnapshot, *, name: str, evidence: Evidence, known_gpus: Mapping[str, GpuSpec]
) -> NewProfile:
    """The profile of nodes like this one; `known_gpus` are GPU types by their option's name.

    Raises TopologyError where the source doesn't tell of GPUs, or there are several kinds of them.
    """
    if "gpus" in snapshot.untold:
        raise TopologyError("profile: lscpu and numactl don't tell of GPUs; add nvidia-smi topo -m, or record the node")
    gpu = _common_gpu(snapshot.gpus)
    option = None if gpu is None else _option_of(gpu, known_gpus)
    knows_cpus = "cpus" not in snapshot.untold
    profile = HardwareProfile(
        name=name,
        description=_description(snapshot, gpu),
        gpus_per_node=len(snapshot.gpus),
        gpu=gpu.name if gpu else None,
        cpu_ranks_per_node=1 if gpu else max(1, len(snapshot.cpu_nodes())),
        cpus_per_node=len(snapshot.online) if knows_cpus else None,
        gpu_spec=_gpu_spec(gpu, evidence) if gpu and option is None else None,
        node_spec=_node_spec(snapshot, evidence, knows_cpus=knows_cpus),
    )
    return NewProfile(profile=profile, gpu_option=option)


def _common_gpu(gpus: Sequence[Gpu]) -> Gpu | None:
    kinds = {(gpu.name, gpu.pci_device_id): gpu for gpu in gpus}
    if len(kinds) > 1:
        names = ", ".join(sorted({gpu.name or "unnamed" for gpu in gpus}))
        raise TopologyError(f"profile: the node has GPUs of several kinds ({names}); a profile describes one")
    return next(iter(kinds.values()), None)


def _option_of(gpu: Gpu, known: Mapping[str, GpuSpec]) -> str | None:
    """The one GPU type that is this one by device id, or by name and memory where an id is not known."""
    found = [option for option, spec in known.items() if _is_same(gpu, spec)]
    return found[0] if len(found) == 1 else None


def _is_same(gpu: Gpu, spec: GpuSpec) -> bool:
    if gpu.pci_device_id is not None and spec.pci_device_id is not None:
        return gpu.pci_device_id.casefold() == spec.pci_device_id.casefold()
    if gpu.memory_bytes is None or spec.memory_mib_nvidia_smi is None:
        return False
    wanted = spec.memory_mib_nvidia_smi * _MIB
    family = spec.name.split("-")[0]
    named = family in (gpu.name or "").replace("-", " ").split()
    return named and abs(gpu.memory_bytes - wanted) <= _SAME_MEMORY * wanted


def _description(snapshot: NodeSnapshot, gpu: Gpu | None) -> str:
    what = f"{len(snapshot.gpus)} x {gpu.name or 'GPU'}" if gpu else "no GPU"
    return f"{what}; written from a node by himori profile new"


def _gpu_spec(gpu: Gpu, evidence: Evidence) -> GpuSpec | None:
    """None where nothing of it is known."""
    spec = GpuSpec(
        name=gpu.name or "unknown",
        compute_capability=gpu.compute_capability,
        memory_mib_nvidia_smi=None if gpu.memory_bytes is None else gpu.memory_bytes // _MIB,
        power_watts=gpu.power_limit_watts,
        pci_device_id=gpu.pci_device_id,
    )
    spec.sources = _evidence(spec, evidence)
    return spec if spec.sources else None


def _node_spec(snapshot: NodeSnapshot, evidence: Evidence, *, knows_cpus: bool) -> NodeSpec:
    nics = () if "nics" in snapshot.untold else fabric_nics(snapshot)
    rates = {active_rate(nic) for nic in nics}
    memory, nodes = host_memory_gib(snapshot), len(snapshot.cpu_nodes())
    spec = NodeSpec(
        nics_per_node=[] if "nics" in snapshot.untold else [len(nics)],
        nic_gbit_per_s=rates.pop() if len(rates) == 1 else None,
        fabric=_fabric(nics),
        numa_nodes=[nodes] if nodes and knows_cpus else [],
        cores_per_node=len(snapshot.cores) if knows_cpus else None,
        host_memory_gib=None if memory is None else round(memory, 1),
    )
    spec.sources = _evidence(spec, evidence)
    return spec


def _fabric(nics: Sequence[Nic]) -> str | None:
    layers = Counter(port.link_layer for nic in nics for port in nic.ports or () if port.active)
    return _FABRICS[layers.most_common(1)[0][0]] if layers else None


_TEXTS = {"name", "fabric", "cpu", "sources", "price_currency", "price_basis"}


def _evidence(spec: GpuSpec | NodeSpec, evidence: Evidence) -> dict[str, Evidence]:
    """The same for every number that is there."""
    held = ((field.name, getattr(spec, field.name)) for field in fields(spec) if field.name not in _TEXTS)
    return {name: evidence for name, value in held if value not in (None, [], {})}
