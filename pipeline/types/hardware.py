"""What a node is expected to be: hardware profiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Confidence(Enum):
    """How far a number of a profile may be trusted."""

    high = "high"
    """Measured on the machine or printed by its maker."""
    medium = "medium"
    """From one secondary source, or derived from a figure with high confidence."""
    low = "low"
    """Announced, reported or unverified: an expectation to check."""


@dataclass(kw_only=True, slots=True)
class Evidence:
    """Where a number of a profile comes from."""

    source: str
    confidence: Confidence
    note: str = ""
    """Alternatives, basis, what to check."""


@dataclass(kw_only=True, slots=True)
class GpuSpec:
    """One GPU type as a training job meets it; None is unknown."""

    name: str
    compute_capability: int | None = None
    """Ten times CUDA's number: 80 is Ampere, 90 Hopper, 100 Blackwell."""
    memory_gib: float | None = None
    """What torch reports as the device's total memory."""
    memory_mib_nvidia_smi: int | None = None
    hbm_tb_per_s: float | None = None
    """Memory bandwidth, 1e12 B/s."""
    peak_tflops: dict[str, float] = field(default_factory=dict)
    """Dense peak by rate class (bf16, fp8, mxfp8, nvfp4); a class that isn't there doesn't exist on this GPU."""
    nvlink_gb_per_s: float | None = None
    """NVLink, one direction, 1e9 B/s."""
    power_watts: float | None = None
    """Board power limit."""
    pci_device_id: str | None = None
    """PCI device id, hexadecimal: tells apart what NVML names alike."""
    sources: dict[str, Evidence] = field(default_factory=dict)
    """Evidence by field name; every number has one."""


@dataclass(kw_only=True, slots=True)
class NodeSpec:
    """What surrounds the GPUs of one node; None is unknown, lists hold the alternatives that are expected."""

    nvlink_domain_gpus: int | None = None
    """GPUs that reach each other over NVLink; more than one node holds in a rack-scale domain."""
    nics_per_node: list[int] = field(default_factory=list)
    """Adapters of the compute fabric, storage ports not counted."""
    nic_gbit_per_s: float | None = None
    """Line rate of one adapter."""
    fabric: str | None = None
    excluded_nics: list[str] = field(default_factory=list)
    """Adapters that carry no training traffic though they look like it (storage), by RDMA name or PCI bus id."""
    numa_nodes: list[int] = field(default_factory=list)
    """NUMA nodes with CPUs."""
    cpu: str | None = None
    cores_per_node: int | None = None
    """Physical cores, of all sockets."""
    host_memory_gib: float | None = None
    overhead_watts: float | None = None
    """Power of a node beside its GPUs: CPUs, memory, fans, adapters."""
    price_per_gpu_hour: float | None = None
    price_currency: str = "USD"
    price_basis: str | None = None
    """On demand, reserved, capacity block, and at which date: prices of different bases don't compare."""
    sources: dict[str, Evidence] = field(default_factory=dict)
    """Evidence by field name; every number has one."""


@dataclass(kw_only=True, slots=True)
class HardwareProfile:
    """What a node of this type is expected to be; the node itself is the truth."""

    name: str
    """Name of the profile, equal to its file name."""
    description: str = ""
    """One line for people."""
    gpus_per_node: int = 0
    """GPUs in one node; 0 trains on the CPU over gloo."""
    gpu: str | None = None
    """GPU model as NVML names it; None without GPUs."""
    cpu_ranks_per_node: int = 1
    """Ranks that share one node when it has no GPU."""
    cpus_per_node: int | None = None
    """Logical CPUs of a node; None: not known, the scheduler's default share is used."""
    gpu_spec: GpuSpec | None = None
    """Numbers of the GPU; None: nothing is planned about memory and speed."""
    node_spec: NodeSpec = field(default_factory=NodeSpec)
    """What surrounds the GPUs."""
    software: dict[str, str] = field(default_factory=dict)
    """Versions the system offers, as `>=12.4,<13`, by component: driver, cuda, torch, te, megatron-core, nccl, os."""
    software_sources: dict[str, Evidence] = field(default_factory=dict)
    """Evidence by component; what a site adds for itself needs none."""
