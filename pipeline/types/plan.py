"""What planning derives from a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    shard_replicas: int = 1
    """Groups of data-parallel ranks that each hold a whole copy of what is sharded."""

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
    allocated_low_gib: float
    allocated_high_gib: float
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
