"""Where jobs go and how a site wants them asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class LauncherKind(Enum):
    """How a cluster starts processes."""

    local = "local"
    slurm = "slurm"


class GpuDialect(Enum):
    """How a site wants GPUs asked for: `--gpus-per-node=N` or `--gres=gpu:N`."""

    gpus_per_node = "gpus_per_node"
    gres = "gres"


class CpuPolicy(Enum):
    """How the cores of a node are given to its ranks."""

    strict = "strict"
    """Cores of the home node; nodes without GPUs stay free for loaders, writers and daemons."""
    spread = "spread"
    """Also the cores of GPU-less nodes of the same socket."""
    equalize = "equalize"
    """As strict, but every rank only gets as many cores as the poorest."""
    none = "none"
    """No binding; GPUs and NICs are still chosen."""


@dataclass(kw_only=True, slots=True)
class Cluster:
    """Where jobs go and how that site wants them asked for."""

    name: str
    launcher: LauncherKind
    """Which launcher dispatches the job."""
    description: str = ""
    ranks_per_node: int | None = None
    """Ranks on one node; None: one a GPU, or the profile's `cpu_ranks_per_node`."""
    time_limit_min: int = 60
    """Wall-clock limit of one attempt, minutes."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpu_dialect: GpuDialect = GpuDialect.gpus_per_node
    request_gpus: bool = True
    """False: never ask the scheduler for GPUs (a CPU run on a GPU cluster)."""
    exclusive: bool = True
    """Whole nodes."""
    cpus_per_rank: int | None = None
    """Logical CPUs asked for each rank; None: the profile's CPUs divided by the ranks of a node, where known."""
    binding: CpuPolicy = CpuPolicy.strict
    """Where each rank's CPUs and memory come from: strict, spread, equalize, or none to leave both to the kernel."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options by long name, e.g. `constraint: h100`; an empty value is a bare flag."""
    setup: list[str] = field(default_factory=list)
    """Shell lines run once on the first node before the ranks start (module loads)."""
    python: str | None = None
    """Interpreter on the nodes; None: the one that submits."""
    rendezvous_timeout_s: float = 120.0
    """How long rank 0 waits for the other ranks to report before the run is ended."""
    max_attempts: int = 10
    """Attempts of one run at most, counted over preemptions, time limits and repeated failures; 1: never another."""
    checkpoint_grace_s: float = 60.0
    """How long ranks that were told to end early may take to save, where the scheduler sets no time itself."""
    hang_least_s: float = 120.0
    """No rank is called hung before it was silent for this long (and ten times its slowest recent step); 0: never."""
    price_per_gpu_hour: float | None = None
    """What this site charges; None: the price of the hardware profile, where it has one."""
    price_currency: str = "USD"
    price_basis: str | None = None
    """What that price is: on demand, reserved, and at which date."""
