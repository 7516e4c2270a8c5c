"""Time of collectives over a hierarchy: NVLink inside a domain, network adapters between domains."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkModel:
    """What fraction of the line rates collectives reach, and what each costs at least."""

    nvlink_efficiency: float = 0.70
    """All-gather and reduce-scatter on NVLink 5 (SimuMax fits: 0.67 to 0.74 of 900 GB/s)."""
    all_to_all_efficiency: float = 0.60
    """SimuMax fit of all-to-all on NVLink 5."""
    network_efficiency: float = 0.74
    """Adapter rate reached by a 16 GiB all-reduce over four nodes of eight B200 (37 of 50 GB/s)."""
    nvlink_latency_s: float = 25e-6
    network_latency_s: float = 100e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Rates of one node type, 1e9 B/s for each GPU and direction."""

    nvlink_gb_per_s: float
    adapter_gb_per_s: float
    """Share of the network adapters that one GPU has."""
    domain_gpus: int
    assumed: tuple[str, ...] = ()
    """What the profile doesn't say and was assumed."""


# A profile without network numbers is planned with one 400 Gbit/s adapter for each GPU, and says so.
_ASSUMED_ADAPTER_GB_PER_S = 50.0
_PCIE_GB_PER_S = 32.0


def network(job: Job, gpus_per_node: int) -> Network:
    """Rates of the job's node, assumptions named."""
    node, assumed = job.node, []
    if node.nics_per_node and node.nic_gbit_per_s:
        adapter = min(node.nics_per_node) * node.nic_gbit_per_s / 8 / max(1, gpus_per_node)
    else:
        adapter = _ASSUMED_ADAPTER_GB_PER_S
        assumed.append("node_spec.nic_gbit_per_s is unknown: 400 Gbit/s a GPU assumed between nodes")
    domain = node.nvlink_domain_gpus or gpus_per_node
    return Network(
        nvlink_gb_per_s=job.gpu.nvlink_gb_per_s or _PCIE_GB_PER_S,
        adapter_gb_per_s=adapter,
        domain_gpus=max(1, domain),
        assumed=tuple(assumed),
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate: every `stride`-th rank, `size` of them."""

    size: int
    stride: int

    def members_per_domain(self, domain_gpus: int) -> int:
        """How many of them share one NVLink domain."""
        return max(1, min(self.size, domain_gpus // max(1, self.stride)))


def gather_s(total_bytes: float, group: Group, links: Network, model: LinkModel) -> float:
    """Seconds of an all-gather whose result has `total_bytes` (a reduce-scatter of that input takes as long).

    Between domains every member uses its own adapters for its part, while NVLink spreads the parts inside: the
    slower of the two counts.
    """
    if group.size <= 1 or total_bytes <= 0:
        return 0.0
    inside = group.members_per_domain(links.domain_gpus)
    domains = -(-group.size // inside)
    local = total_bytes * (inside - 1) / inside / (links.nvlink_gb_per_s * 1e9 * model.nvlink_efficiency)
    if domains == 1:
        return local + model.nvlink_latency_s
    wire = inside * links.adapter_gb_per_s * 1e9 * model.network_efficiency
    return max(local, total_bytes * (domains - 1) / domains / wire) + model.network_latency_s


def exchange_s(sent_bytes: float, group: Group, links: Network, model: LinkModel) -> float:
    """Seconds of an all-to-all in which each rank holds `sent_bytes` for all members, itself included."""
    if group.size <= 1 or sent_bytes <= 0:
        return 0.0
    inside = group.members_per_domain(links.domain_gpus)
    local = sent_bytes * (inside - 1) / group.size / (links.nvlink_gb_per_s * 1e9 * model.all_to_all_efficiency)
    if inside == group.size:
        return local + model.nvlink_latency_s
    remote = sent_bytes * (group.size - inside) / group.size
    return local + remote / (links.adapter_gb_per_s * 1e9 * model.network_efficiency) + model.network_latency_s


def send_s(message_bytes: float, stride: int, links: Network, model: LinkModel) -> float:
    """Seconds to send to the rank `stride` further on."""
    if stride < links.domain_gpus:
        return message_bytes / (links.nvlink_gb_per_s * 1e9 * model.nvlink_efficiency) + model.nvlink_latency_s
    return message_bytes / (links.adapter_gb_per_s * 1e9 * model.network_efficiency) + model.network_latency_s
