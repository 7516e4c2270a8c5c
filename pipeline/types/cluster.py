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


class ContainerRuntime(Enum):
    """What runs an image on the nodes."""

    none = "none"
    """Nothing: ranks run in the nodes' own environment."""
    pyxis = "pyxis"
    """Slurm's SPANK plugin over enroot: whole tasks run inside, supervisors included."""
    apptainer = "apptainer"
    """Apptainer or Singularity: supervisors run outside and start each worker inside."""


@dataclass(kw_only=True, slots=True)
class Container:
    """An image the ranks run in; its torch, Transformer Engine and NCCL are used as they are."""

    runtime: ContainerRuntime = ContainerRuntime.none
    image: str | None = None
    """A file (`.sqsh`, `.sif`) or what the runtime pulls from, such as `nvcr.io#nvidia/pytorch:25.09-py3`."""
    mounts: list[str] = field(default_factory=list)
    """Further folders, `SOURCE:TARGET` or one name for both; the run root and data.path are there without asking."""
    python: str = "python3"
    """Interpreter inside the image."""


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
    reservation: str | None = None
    constraint: str | None = None
    """Features nodes must have, in sbatch's grammar: `h100&nvl`."""
    nodelist: str | None = None
    exclude: str | None = None
    """Nodes that are not to be used."""
    licenses: str | None = None
    mail_type: str | None = None
    mail_user: str | None = None
    nice: int | None = None
    segment: int | None = None
    """Nodes that have to stand together in one block of a block topology (Slurm 23.11 and later)."""
    gpu_dialect: GpuDialect = GpuDialect.gpus_per_node
    gpu_type: str | None = None
    """The site's name of the GPU type, where it has to be asked for: `gpu:h100:8` or `h100:8`."""
    request_gpus: bool = True
    """False: never ask the scheduler for GPUs (a CPU run on a GPU cluster)."""
    exclusive: bool = True
    """Whole nodes."""
    cpus_per_rank: int | None = None
    """Logical CPUs asked for each rank; None: the profile's CPUs divided by the ranks of a node, where known."""
    binding: CpuPolicy = CpuPolicy.strict
    """Where each rank's CPUs and memory come from: strict, spread, equalize, or none to leave both to the kernel."""
    bind_memory_gib_per_rank: float | None = None
    """Memory each rank needs, GiB: binds it hard to its NUMA node (the kernel kills rather than spills) where the node
    has that much free for all its ranks; None: the node is preferred, and spills before it fails."""
    strict_profile: bool = False
    """Whether a node that differs from the hardware profile ends the run before it trains; else it is recorded."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options by long name, e.g. `constraint: h100`; an empty value is a bare flag."""
    array_parallelism: int | None = None
    """Points of a sweep that run at the same time; None: what the scheduler lets, one by one without a scheduler."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the job, as they are; secrets belong into the submitting shell's environment."""
    container: Container = field(default_factory=Container)
    """The image the ranks run in."""
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
