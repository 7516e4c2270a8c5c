"""Which NICs of a node carry training traffic, and which are left alone (rule R9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.hardware.topology import Distance, LinkLayer, Nic, NodeSnapshot, device_order


@dataclass(frozen=True, kw_only=True, slots=True)
class ExcludedNic:
    """A NIC that is left alone, and why."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NicClasses:
    """The NICs of a node, sorted out."""

    compute: tuple[Nic, ...]
    """Those for training traffic, in bus order."""
    excluded: tuple[ExcludedNic, ...]
    """Storage, management, down: everything else."""


@dataclass(frozen=True, slots=True)
class _Context:
    snapshot: NodeSnapshot
    excluded: Collection[str]
    distances: Mapping[tuple[str, str], Distance]
    """By bus id of the GPU and name of the NIC."""

    def near_gpus(self, nic: Nic) -> list[str]:
        return [gpu.bdf for gpu in self.snapshot.gpus if self.distances[gpu.bdf, nic.name] <= Distance.PXB]

    def neighbours(self, nic: Nic) -> list[str]:
        """GPUs that would use the NIC: those near it, or all when none is."""
        return self.near_gpus(nic) or [gpu.bdf for gpu in self.snapshot.gpus]


_FOREIGN = "neither InfiniBand nor RoCE"

_Rule = Callable[[_Context, Sequence[Nic]], Mapping[str, str]]
"""From the NICs still in question to the names of those that fall out, each with its reason."""


def classify_nics(snapshot: NodeSnapshot, *, excluded: Collection[str] = ()) -> NicClasses:
    """Sorts out which NICs are for training; `excluded` names some that are not, by RDMA name or bus id."""
    context = _Context(snapshot, excluded, _distances(snapshot))
    left = sorted(snapshot.nics, key=nic_order)
    dropped: list[ExcludedNic] = []
    for rule in _RULES:
        reasons = rule(context, left)
        dropped.extend(ExcludedNic(name=name, why=why) for name, why in reasons.items())
        left = [nic for nic in left if nic.name not in reasons]
    return NicClasses(compute=tuple(left), excluded=tuple(dropped))


def fabric_nics(snapshot: NodeSnapshot, *, excluded: Collection[str] = ()) -> tuple[Nic, ...]:
    """The adapters between nodes: those for training, or where a cloud's own plugin chooses among its own, those."""
    classes = classify_nics(snapshot, excluded=excluded)
    if classes.compute:
        return classes.compute
    plugins = {one.name for one in classes.excluded if one.why == _FOREIGN}
    return tuple(nic for nic in sorted(snapshot.nics, key=nic_order) if nic.name in plugins)


def active_rate(nic: Nic) -> float | None:
    """Gb/s of the fastest active port; None where that is not known."""
    rates = [port.rate_gbps for port in nic.ports or () if port.active and port.rate_gbps is not None]
    return max(rates, default=None)


def nic_order(nic: Nic) -> tuple[object, ...]:
    """Sort key: the bus id where there is one, for names may change from boot to boot."""
    return (device_order(nic.bdf or nic.name), device_order(nic.name))


def _distances(snapshot: NodeSnapshot) -> dict[tuple[str, str], Distance]:
    return {(gpu.bdf, nic.name): snapshot.device_distance(gpu, nic) for gpu in snapshot.gpus for nic in snapshot.nics}


def _named(context: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    return {nic.name: "excluded by name" for nic in nics if {nic.name, nic.bdf} & set(context.excluded)}


def _down(_: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    return {
        nic.name: "no active port"
        for nic in nics
        if nic.ports is not None and not any(port.active for port in nic.ports)
    }


def _foreign(_: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    """EFA and the like: their own plugin chooses."""
    return {nic.name: _FOREIGN for nic in nics if _layer(nic) is LinkLayer.unspecified}


def _far(context: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    far = [nic for nic in nics if not context.near_gpus(nic)]
    if len(far) == len(nics):
        return {}
    return {nic.name: "no GPU within PXB, other NICs have one" for nic in far}


def _bonds(_: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    bonds = [nic for nic in nics if nic.is_bond]
    return {} if len(bonds) == len(nics) else {nic.name: "a bond beside NICs that are none" for nic in bonds}


def _virtual_functions(_: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    counted = {nic.bdf: nic.name for nic in nics if nic.bdf is not None}
    return {nic.name: f"a virtual function of {counted[nic.physfn]}" for nic in nics if nic.physfn in counted}


def _minority_fabric(_: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    """InfiniBand and RoCE can't talk to each other: one mixed pair ends the job."""
    fastest = max((_rate(nic) or 0.0 for nic in nics), default=0.0)
    layers = Counter(layer for nic in nics if (layer := _layer(nic)) and _rate(nic) == fastest)
    if not layers:
        return {}
    main = max(layers, key=lambda layer: (layers[layer], layer is LinkLayer.infiniband))
    return {
        nic.name: f"{layer.value} where the fastest NICs speak {main.value}"
        for nic in nics
        if (layer := _layer(nic)) not in (None, main)
    }


def _slower_twins(context: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    """A slow NIC that is the nearest one of some GPU stays: leaving its rail would be worse."""
    return {
        nic.name: "slower than another NIC equally near"
        for nic in nics
        if (gpus := context.neighbours(nic)) and all(_has_faster(context, nics, nic, gpu) for gpu in gpus)
    }


def _has_faster(context: _Context, nics: Sequence[Nic], slow: Nic, gpu: str) -> bool:
    rate, here = _rate(slow), context.distances[gpu, slow.name]
    return rate is not None and any(
        (_rate(nic) or 0.0) > rate and context.distances[gpu, nic.name] <= here for nic in nics
    )


def _dual_ports(context: _Context, nics: Sequence[Nic]) -> dict[str, str]:
    """Where nothing is near: one NIC a GPU is the fabric, cards of two ports beside them are storage (GB200)."""
    single = [nic for nic in nics if not any(_one_card(context, nic, other) for other in nics if other is not nic)]
    if any(map(context.near_gpus, nics)) or len(single) < len(context.snapshot.gpus):
        return {}
    return {nic.name: "a port of a dual-port card beside one single NIC a GPU" for nic in nics if nic not in single}


def _one_card(context: _Context, a: Nic, b: Nic) -> bool:
    if a.bdf is not None and b.bdf is not None:
        return a.bdf.rpartition(".")[0] == b.bdf.rpartition(".")[0]
    return context.snapshot.device_distance(a, b) <= Distance.PIX


_RULES: tuple[_Rule, ...] = (
    _named,
    _down,
    _foreign,
    _far,
    _bonds,
    _virtual_functions,
    _minority_fabric,
    _slower_twins,
    _dual_ports,
)


def _active_ports(nic: Nic) -> list[tuple[float, LinkLayer]]:
    return [(port.rate_gbps or 0.0, port.link_layer) for port in nic.ports or () if port.active]


def _rate(nic: Nic) -> float | None:
    """Gb/s of the fastest active port; None where ports are not known."""
    return max((rate for rate, _ in _active_ports(nic)), default=None)


def _layer(nic: Nic) -> LinkLayer | None:
    ports = _active_ports(nic)
    return max(ports, key=lambda port: port[0])[1] if ports else None
