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
    checkpoint_every_steps: int = 0
    """Steps from one checkpoint to the next, a last one at the end; 0: only when the run is told to end early."""
    checkpoint_keep_last: int = 2
    """Checkpoints that are kept, the newest ones."""
    checkpoint_keep_every_steps: int = 0
    """Checkpoints of multiples of this step are kept for good; 0: none."""
    deterministic: bool = False
    """Only kernels and collectives that give the same bits every time; slower on a GPU, no difference on a CPU."""


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
