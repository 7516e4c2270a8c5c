"""How it is trained: precision, optimizer, data, techniques, tracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


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


class AmaxCompute(Enum):
    """Which largest magnitudes of the past delayed scaling takes its scale from."""

    max = "max"
    """The largest of the history."""
    most_recent = "most_recent"


@dataclass(kw_only=True, slots=True)
class Precision:
    """Number formats of a run."""

    name: str
    dtype: DType
    low_precision: LowPrecision | None = None
    """Format of the linear layers; None: they compute in `dtype`."""
    low_precision_params: bool = False
    """Weights are kept and gathered in the low-precision format (fp8_param_gather); False: kept in `dtype`."""
    low_precision_output: bool = False
    """The output layer computes in the format too (mxfp8 alone, megatron-core 0.19)."""
    cache_weights: bool = True
    """Quantized weights of a step's first micro-batch serve the others too; False saves their transposed copies."""
    amax_history: int = 1024
    """fp8_delayed: steps whose largest magnitudes are remembered."""
    amax_compute: AmaxCompute = AmaxCompute.max
    """fp8_delayed: what the scale follows of them."""
    first_layers: int = 0
    """Layers at the start of the model that stay in `dtype`."""
    last_layers: int = 0
    """Layers at its end that do."""


class Decay(Enum):
    """How the learning rate falls after warm-up."""

    constant = "constant"
    cosine = "cosine"
    linear = "linear"
    wsd = "wsd"
    """Stays at its height until the last `decay_steps`, then falls as `decay_shape` says (warm-up, stable, decay)."""


class DecayShape(Enum):
    """How the rate falls in the decay phase of wsd."""

    linear = "linear"
    cosine = "cosine"
    exponential = "exponential"
    minus_sqrt = "minus_sqrt"
    """1 - sqrt(share of the phase that is over) (arXiv:2405.18392)."""


class MuonScale(Enum):
    """What an orthogonalized update is multiplied with, for a matrix of shape [out, in]."""

    spectral = "spectral"
    """sqrt(max(out, in))."""
    unit_rms_norm = "unit_rms_norm"
    """sqrt(out / in)."""
    shape_scaling = "shape_scaling"
    """sqrt(max(1, out / in))."""


@dataclass(kw_only=True, slots=True)
class MuonSpec:
    """Muon for the matrices of the layers; all other parameters keep AdamW."""

    momentum: float = 0.95
    iterations: int = 5
    """Newton-Schulz iterations."""
    scale: MuonScale = MuonScale.spectral
    extra_scale: float = 1.0
    split_qkv: bool = True
    """Query, key and value parts of one matrix are orthogonalized apart."""


@dataclass(kw_only=True, slots=True)
class OptimizerSpec:
    """AdamW, or Muon beside it, and the schedule."""

    name: str
    lr: float
    min_lr: float
    """Learning rate at the end of decay."""
    warmup_steps: int
    decay: Decay = Decay.cosine
    decay_steps: int | None = None
    """wsd: steps of the decay phase; None: a tenth of the run."""
    decay_shape: DecayShape = DecayShape.linear
    """wsd: how the rate falls in it."""
    weight_decay: float = 0.01
    no_decay: list[str] = field(default_factory=list)
    """Patterns of further parameter names without weight decay, such as *embedding*; vectors never have it."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    z_loss: float = 0.0
    """Factor of the output layer's z-loss, log(Z)^2 of each token (PaLM, arXiv:2204.02311, section 5)."""
    distributed: bool = True
    """Shard optimizer state over data-parallel ranks."""
    muon: MuonSpec | None = None
    """None: AdamW for all parameters."""


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
    optim = "optim"
    """Megatron-FSDP, optimizer state alone (ZeRO-1)."""
    optim_grads = "optim_grads"
    """Megatron-FSDP, gradients and optimizer state (ZeRO-2)."""
    optim_grads_params = "optim_grads_params"
    """Megatron-FSDP, parameters too (ZeRO-3)."""


class Dispatcher(Enum):
    """How tokens get to the ranks that hold their experts."""

    alltoall = "alltoall"
    allgather = "allgather"
    flex = "flex"
    """DeepEP's kernels."""


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
    moe_dispatcher: Dispatcher = Dispatcher.alltoall
    grouped_gemm: bool | None = None
    """All experts of a rank in one kernel; None: on a GPU."""
    overlap_grad_reduce: bool | None = None
    """Gradients are reduced while the backward pass goes on; None: on GPUs that share them."""
    overlap_param_gather: bool | None = None
    """Updated parameters are gathered while the next forward pass goes on; None: on GPUs that shard the optimizer."""
    overlap_p2p: bool | None = None
    """Interleaved stages send while they compute; None: on GPUs."""
    overlap_tp: bool = False
    """Tensor-parallel collectives run in pieces beside their matrix products (Transformer Engine's user buffers)."""
    optimizer_offload: float = 0.0
    """Fraction of the optimizer state kept in host memory."""
    activation_offload_layers: int = 0
    """Layers of each stage whose activations are copied to host memory."""
    offload_modules: list[str] = field(default_factory=list)
    """Modules whose input is: attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act."""
    expandable_segments: bool = False
    """torch's allocator grows its segments instead of keeping blocks of fixed size."""
    cuda_graphs: bool = False


@dataclass(kw_only=True, slots=True)
class LoraSpec:
    """Small trained matrices beside frozen ones (arXiv:2106.09685)."""

    rank: int = 0
    """Width of the bottleneck; 0: no adapters, all weights are trained."""
    alpha: float = 32.0
    """What the adapters add is multiplied by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    """Linear layers that get an adapter, by Megatron-Core's names."""


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
    layout_invariant_weights: bool = False
    """First weights are drawn as whole tensors on the host, equal however the model is laid out: to compare layouts.
    Runs on CPUs always do; on GPUs it takes time that grows with the whole model."""
    init_from: str | None = None
    """Hugging Face folder whose weights the run starts with; None: they are drawn from the seed."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Adapters to train in place of the model's own weights."""
    eval_every: int = 0
    """Steps between two looks at the loss on held-out data; 0: never."""
    eval_batches: int = 8
    """Global batches of held-out data that one such look takes."""
    checkpoint_every_steps: int = 0
    """Steps from one checkpoint to the next, a last one at the end; 0: only when the run is told to end early."""
    checkpoint_keep_last: int = 2
    """Checkpoints that are kept, the newest ones."""
    checkpoint_keep_every_steps: int = 0
    """Checkpoints of multiples of this step are kept for good; 0: none."""
    deterministic: bool = False
    """Only kernels and collectives that give the same bits every time; slower on a GPU, no difference on a CPU."""


class DataKind(Enum):
    """What is read, and what a token is."""

    text = "text"
    """Any text files; each byte is a token."""
    mock = "mock"
    """Random tokens from the seed; nothing is read."""
    indexed = "indexed"
    """Megatron's indexed datasets, a .bin and an .idx file each."""
    chat = "chat"
    """Conversations, a JSON object a line, of which only the assistant's words are learnt."""


@dataclass(kw_only=True, slots=True)
class DataSpec:
    """What is read."""

    name: str
    kind: DataKind = DataKind.text
    path: str | None = None
    """text: a file or a folder of files, None for text of the Python standard library; indexed: the files' path without
    .bin and .idx; chat: a .jsonl file."""
    blend: dict[str, float] = field(default_factory=dict)
    """indexed: several paths with their weights, in place of `path`."""
    validation_fraction: float = 0.0
    """Part of each source, at its end, that is held out from training."""
    validation_path: str | None = None
    """Held-out data of the same kind with a path of its own, in place of `validation_fraction`."""
    reset_positions: bool = False
    """Positions start anew with each document of a sample."""
    reset_attention: bool = False
    """Tokens don't see documents before their own."""
    tokenizer: str | None = None
    """chat: folder with tokenizer.json and tokenizer_config.json."""
    stage_dir: str | None = None
    """indexed: folder on each node's own disk to copy the files to first; None: they are read where they are."""


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
    telemetry_every_s: float = 5.0
    """Time between two samples of each node's hardware; 0: none are taken."""


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
    shard_replicas: int | None = None
    """Groups of data-parallel ranks that each hold a whole copy of what is sharded (hybrid sharding); None: one."""
