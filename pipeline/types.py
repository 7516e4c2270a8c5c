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
    numa_nodes: list[int] = field(default_factory=list)
    """NUMA nodes with CPUs."""
    cpu: str | None = None
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
    stop_grace_s: float = 5.0
    """How long a worker that was told to stop may take before it is killed."""
    price_per_gpu_hour: float | None = None
    """What this site charges; None: the price of the hardware profile, where it has one."""
    price_currency: str = "USD"
    price_basis: str | None = None
    """What that price is: on demand, reserved, and at which date."""


class Normalization(Enum):
    """Which norm a transformer layer uses."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(Enum):
    """The MLP's activation; swiglu is gated, gelu and squared_relu are not."""

    swiglu = "swiglu"
    gelu = "gelu"
    squared_relu = "squared_relu"


@dataclass(kw_only=True, slots=True)
class MoeSpec:
    """Experts in place of the MLP of a layer."""

    num_experts: int
    top_k: int
    """Experts each token is sent to."""
    expert_ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    """Width of the expert every token passes; 0: none."""
    dense_layers: int = 0
    """Layers at the start that keep the dense MLP of width `ffn_hidden_size`."""
    expert_bias: bool = False
    """Linear layers of the experts carry biases."""
    router_bias: bool = False
    """The router adds a bias for each expert."""
    capacity_factor: float | None = None
    """Tokens an expert takes, relative to an even share; None: it takes all that come (dropless)."""


@dataclass(kw_only=True, slots=True)
class MlaSpec:
    """Multi-head latent attention in place of query, key and value projections."""

    kv_lora_rank: int
    qk_nope_dim: int
    """Width of a query or key head without position."""
    qk_rope_dim: int
    """Width of its part with rotary position, shared by all key heads."""
    v_dim: int
    q_lora_rank: int | None = None
    """Rank of the query's latent; None: queries are projected directly."""


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
    moe: MoeSpec | None = None
    """Experts; None: every layer has a dense MLP."""
    mla: MlaSpec | None = None
    """Latent attention; None: grouped-query attention."""
    qk_norm: bool = False
    """Queries and keys are normalized, head by head."""
    linear_bias: bool | None = None
    """Linear layers carry biases; None: GELU models do, others don't."""
    qkv_bias: bool | None = None
    """Query, key and value projections carry biases; None: as `linear_bias`."""
    output_bias: bool | None = None
    """Attention's output projection carries a bias; None: as `linear_bias`."""
    sinks: bool = False
    """Each attention head has a learned sink."""
    sliding_window: int | None = None
    """Tokens a windowed layer looks back; None: all layers see the whole sequence."""
    full_attention_every: int = 1
    """With a window: every n-th layer still sees the whole sequence."""
    learned_positions: bool = False
    """A learned embedding for each position, instead of rotary ones."""
    hidden_dropout: float = 0.0
    """Probability that a value is dropped before it joins the residual stream."""


class DType(Enum):
    """Type of weights and activations."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class LowPrecision(Enum):
    """Recipe by which linear layers compute in fewer bits than weights and activations have."""

    fp8_delayed = "fp8_delayed"
    fp8_current = "fp8_current"
    fp8_blockwise = "fp8_blockwise"
    mxfp8 = "mxfp8"
    nvfp4 = "nvfp4"


@dataclass(kw_only=True, slots=True)
class Precision:
    """Number formats of a run."""

    name: str
    dtype: DType
    low_precision: LowPrecision | None = None
    """Format of the linear layers; None: they compute in `dtype`."""
    low_precision_params: bool = False
    """Weights are kept and gathered in the low-precision format (fp8_param_gather); False: kept in `dtype`."""


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


class Recompute(Enum):
    """What is computed again in the backward pass instead of kept."""

    none = "none"
    selective = "selective"
    """The modules named."""
    full = "full"
    """Whole layers."""


class RecomputeMethod(Enum):
    """Which layers full recompute takes."""

    uniform = "uniform"
    """All, in groups of `recompute_num_layers`."""
    block = "block"
    """The first `recompute_num_layers` of each stage (of each chunk when stages are interleaved)."""


class CpComm(Enum):
    """How context-parallel ranks exchange keys and values."""

    p2p = "p2p"
    """Around a ring, overlapped with attention."""
    a2a = "a2a"
    """All-to-all over heads (Ulysses)."""
    all_gather = "all_gather"


class Sharding(Enum):
    """What data-parallel ranks divide among themselves, beyond `optimizer.distributed`."""

    none = "none"
    optim_grads = "optim_grads"
    """Megatron-FSDP, gradients and optimizer state (ZeRO-2)."""
    optim_grads_params = "optim_grads_params"
    """Megatron-FSDP, parameters too (ZeRO-3)."""


class CrossEntropy(Enum):
    """How the loss is computed; they differ in bytes for each logit."""

    unfused = "unfused"
    native = "native"
    """Megatron-Core's fused kernel."""
    te = "te"
    """Transformer Engine's, which writes the gradient over the logits."""
    linear = "linear"
    """Fused with the output layer, in chunks: logits never exist as a whole."""


@dataclass(kw_only=True, slots=True)
class Techniques:
    """What trades memory against time or exactness."""

    recompute: Recompute = Recompute.none
    recompute_modules: list[str] = field(default_factory=list)
    """With selective: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts."""
    recompute_method: RecomputeMethod = RecomputeMethod.uniform
    recompute_num_layers: int = 1
    sharding: Sharding = Sharding.none
    grads: DType = DType.fp32
    """Type gradients are accumulated and reduced in."""
    moments: DType = DType.fp32
    """Type of Adam's moments; other than fp32 means the precision-aware optimizer."""
    param_remainders: bool = False
    """Master weights are only the 16 bits that bf16 parameters lack (precision-aware optimizer)."""
    cross_entropy: CrossEntropy = CrossEntropy.native
    cp_comm: CpComm = CpComm.p2p
    optimizer_offload: float = 0.0
    """Fraction of the optimizer state kept in host memory."""
    activation_offload_layers: int = 0
    """Layers of each stage whose activations are copied to host memory."""
    expandable_segments: bool = False
    """torch's allocator grows its segments instead of keeping blocks of fixed size."""
    cuda_graphs: bool = False


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
    vp: int | None = None
    """Model chunks on each pipeline stage (interleaved schedule)."""
    ep: int | None = None
    etp: int | None = None
    """Tensor parallel size inside an expert."""
    chunk_layers: list[int] = field(default_factory=list)
    """Layers of each chunk (each stage without `vp`) in the model's order; empty: all alike."""


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
    techniques: Techniques = field(default_factory=Techniques)
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
    vp: int = 1
    """Model chunks on each pipeline stage."""
    ep: int = 1
    etp: int = 1
    chunk_layers: tuple[int, ...] = ()
    """Layers of each chunk in the model's order; empty: all alike."""

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


class Fit(Enum):
    """Whether a request fits in memory."""

    fits = "FITS"
    """Even the upper bound does."""
    at_risk = "AT_RISK"
    """The upper bound doesn't; a short probe run decides."""
    refused = "REFUSED"
    """Not even the lower bound does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Memory of one rank of one pipeline stage at its peak, GiB."""

    stage: int
    layers: int
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    """Kept for the backward pass, over all micro-batches in flight."""
    loss_gib: float
    """Logits and what the loss makes of them, where this stage's peak is there."""
    transient_gib: float
    """Buffers of the kernels at the peak."""
    outside_torch_gib: float
    """Context, NCCL and library workspaces, and what the allocator reserves but doesn't use."""
    allocated_gib: float
    """What torch would report as its peak."""
    point_gib: float
    """Expected use of the device."""
    lower_gib: float
    upper_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Memory of a plan against what the GPU gives."""

    stages: tuple[StageMemory, ...]
    capacity_gib: float
    fit: Fit

    @property
    def worst(self) -> StageMemory:
        """The stage with the highest expected use."""
        return max(self.stages, key=lambda stage: stage.point_gib)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A quantity with its 10th, 50th and 90th percentile."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Where the time of one optimizer step goes, seconds; the parts sum to the P50."""

    linear_s: float
    attention_s: float
    memory_bound_s: float
    recompute_s: float
    tensor_parallel_s: float
    context_parallel_s: float
    expert_parallel_s: float
    pipeline_s: float
    """Bubble and exposed sends between stages."""
    data_parallel_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """Sum of the parts."""
        return float(sum(getattr(self, name) for name in self.__slots__))


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputEstimate:
    """How fast a plan runs, with the calibration it rests on."""

    step: StepTime
    step_s: Interval
    tokens_per_s: Interval
    """Of the whole job."""
    tokens_per_s_per_gpu: Interval
    model_tflops_per_gpu: float
    """At P50, by the canonical convention: causal attention, output layer, no recompute."""
    calibration: str
    """Version of the calibration."""
    level: str
    """Which group of measured runs it was taken from, and how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a run takes, at P50; None where the profile doesn't say."""

    hours: Interval
    gpu_hours: float
    energy_kwh: float | None
    energy_basis: str
    money: float | None
    currency: str
    money_basis: str


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
    memory: MemoryEstimate | None = None
    """None: the profile has no GPU or doesn't know its memory."""
    throughput: ThroughputEstimate | None = None
    cost: Cost | None = None
    warnings: tuple[str, ...] = ()
    """What is legal but not what it seems."""


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
