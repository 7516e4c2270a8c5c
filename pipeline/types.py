"""The data types of the chain: what each stage takes and what it hands on (standard library only).

Config-born types are read from YAML and so are mutable; derived types are frozen. Units stand in field names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

# --------------------------------------------------------------------------- config-born


class LauncherKind(Enum):
    """How a cluster starts processes."""

    local = "local"
    slurm = "slurm"


class GpuDialect(Enum):
    """How a site wants GPUs asked for: `--gpus-per-node=N` or `--gres=gpu:N`."""

    gpus_per_node = "gpus_per_node"
    gres = "gres"


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
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options by long name, e.g. `constraint: h100`; an empty value is a bare flag."""
    setup: list[str] = field(default_factory=list)
    """Shell lines run once on the first node before the ranks start (module loads)."""
    python: str | None = None
    """Interpreter on the nodes; None: the one that submits."""
    rendezvous_timeout_s: float = 120.0
    """How long rank 0 waits for the other ranks to report before the run is ended."""
    stop_grace_s: float = 5.0
    """How long a worker that was told to stop may take before it is killed."""


class Normalization(Enum):
    """Which norm a transformer layer uses."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(Enum):
    """The MLP's activation; swiglu is gated, gelu is not."""

    swiglu = "swiglu"
    gelu = "gelu"


@dataclass(kw_only=True, slots=True)
class ModelSpec:
    """A GPT, by its shape."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    """Key/value heads (GQA); equal to `num_attention_heads` for plain attention."""
    vocab_size: int
    """Token ids the data may hold, before padding."""
    max_sequence_length: int
    head_dim: int | None = None
    """Width of one head; None: hidden_size / num_attention_heads."""
    normalization: Normalization = Normalization.rmsnorm
    activation: Activation = Activation.swiglu
    tied_embeddings: bool = False
    """Input embedding and output layer share one matrix."""
    rope_base: float = 10000.0


class DType(Enum):
    """Type of weights and activations."""

    fp32 = "fp32"
    bf16 = "bf16"


@dataclass(kw_only=True, slots=True)
class Precision:
    """Number formats of a run."""

    name: str
    dtype: DType


class Decay(Enum):
    """How the learning rate falls after warm-up."""

    constant = "constant"
    cosine = "cosine"
    linear = "linear"


@dataclass(kw_only=True, slots=True)
class OptimizerSpec:
    """AdamW and its schedule."""

    name: str
    lr: float
    min_lr: float
    """Learning rate at the end of decay."""
    warmup_steps: int
    decay: Decay = Decay.cosine
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    distributed: bool = True
    """Shard optimizer state over data-parallel ranks."""


@dataclass(kw_only=True, slots=True)
class Recipe:
    """How much to train and in what portions."""

    name: str
    steps: int
    sequence_length: int
    """Tokens of one sample."""
    micro_batch: int
    """Samples one data-parallel rank runs at once."""
    global_batch: int
    """Samples of one optimizer step over all ranks."""


@dataclass(kw_only=True, slots=True)
class DataSpec:
    """What is read."""

    name: str
    path: str | None = None
    """A text file or a folder of text files, read as bytes; None: text of the Python standard library."""


@dataclass(kw_only=True, slots=True)
class Tracking:
    """Where MLflow sees the run."""

    name: str
    uri: str | None = None
    """MLflow tracking URI; None: sqlite in the run root."""
    experiment: str | None = None
    """MLflow experiment; None: the experiment's name."""
    finish_timeout_s: float = 60.0
    """How long the job waits at its end for the last points to be uploaded; `himori sync` does the rest."""


@dataclass(kw_only=True, slots=True)
class LayoutRequest:
    """Parallel sizes asked for by hand; None is derived."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    sequence_parallel: bool = False


@dataclass(kw_only=True, slots=True)
class Experiment:
    """The whole request: one option of each config group, and the keys that belong to none."""

    name: str
    hardware: HardwareProfile
    cluster: Cluster
    model: ModelSpec
    precision: Precision
    optimizer: OptimizerSpec
    recipe: Recipe
    data: DataSpec
    tracking: Tracking
    layout: LayoutRequest = field(default_factory=LayoutRequest)
    nodes: int | None = None
    """Nodes; None: as many as `ranks` needs, else 1."""
    ranks: int | None = None
    """Ranks of the whole run; None: all that `nodes` hold."""
    seed: int = 1234
    run_root: str = "runs"
    """Folder of run directories; on a cluster every node has to see it."""


# --------------------------------------------------------------------------- derived


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Who does what: parallel sizes and the batch arithmetic they imply."""

    nodes: int
    ranks_per_node: int
    tp: int
    pp: int
    cp: int
    dp: int
    sequence_parallel: bool
    micro_batch: int
    global_batch: int
    num_microbatches: int
    """Micro-batches each data-parallel rank accumulates in one step."""

    @property
    def ranks(self) -> int:
        """Ranks of the whole run: tp * pp * cp * dp."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a value of the plan is what it is."""

    what: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What will run, decided before anything is queued."""

    experiment: str
    layout: Layout
    gpus_per_node: int
    cpus_per_rank: int | None
    parameters: int
    """Parameters of the whole model, embeddings included, padding not."""
    padded_vocab_size: int
    tokens_per_step: int
    total_tokens: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """The exact thing that will run: what `plan` prints and `submit` executes."""

    launcher: LauncherKind
    job_name: str
    comment: str
    """Ties a job in the queue to its run: `himori:<run-id>`."""
    run_dir: str
    attempt: int
    nodes: int
    ranks_per_node: int
    python: str
    time_limit_min: int
    setup: tuple[str, ...]
    sbatch: tuple[tuple[str, str], ...]
    """sbatch options by long name, sorted; an empty value is a bare flag."""
    srun: tuple[str, ...]
    """Further arguments of srun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A submitted attempt, by the name its launcher knows it by."""

    run_id: str
    attempt: int
    launcher: LauncherKind
    job_id: str
    """Slurm job id, or the session id of a local run."""
    submitted_at: float
    """Seconds since the epoch."""
    boot_id: str = ""
    """Local runs: the boot in which `job_id` means this run."""
    start_ticks: int = 0
    """Local runs: start time of the session's first process in clock ticks since boot."""


class RunState(Enum):
    """What a person would call the state of a run."""

    prepared = "PREPARED"
    """Files are written, nothing was submitted."""
    held = "HELD"
    """In the queue, but the submission was not completed."""
    queued = "QUEUED"
    running = "RUNNING"
    finished = "FINISHED"
    failed = "FAILED"
    cancelled = "CANCELLED"
    timeout = "TIMEOUT"
    unknown = "UNKNOWN"
    """Gone without a word from it or from the scheduler."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the run by itself."""
        return self in _FINAL


_FINAL = frozenset({RunState.finished, RunState.failed, RunState.cancelled, RunState.timeout, RunState.unknown})


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank's worker ended."""

    rank: int
    node: str
    exit_code: int | None
    """None when a signal ended it or when nobody saw the end."""
    signal: int | None
    stopped: bool
    """True when its supervisor had told it to stop."""
    tail: tuple[str, ...]
    """The last lines it printed."""
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How an attempt ended and why."""

    state: RunState
    message: str
    """One line for people: which rank, what, where."""
    first: RankExit | None
    """The exit that brought the attempt down; None when none did."""
    time: float
    slurm_state: str = ""
    """The scheduler's own word for it, where it was asked."""
