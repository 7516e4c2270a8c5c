"""What the estimates are made of: a model, its layout, its formats and techniques, on one GPU type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.types import (
    DType,
    GpuSpec,
    Layout,
    LowPrecision,
    ModelSpec,
    NodeSpec,
    Precision,
    Recompute,
    Sharding,
    Techniques,
)

GIB = 2.0**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A request as the estimators read it; nothing in it has to be legal or to fit."""

    model: ModelSpec
    layout: Layout
    precision: Precision
    techniques: Techniques
    sequence_length: int
    gpu: GpuSpec
    node: NodeSpec
    distributed_optimizer: bool = True

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.layout.micro_batch * self.sequence_length / self.layout.cp

    @property
    def sequence_split(self) -> int:
        """Into how many parts tp ranks divide what lies between their matrices."""
        return self.layout.tp if self.layout.sequence_parallel else 1

    @property
    def data_ranks(self) -> int:
        """Ranks that share the state of dense parameters: data and context parallel ones."""
        return self.layout.dp * self.layout.cp

    @property
    def expert_data_ranks(self) -> float:
        """Ranks that share the state of the same experts."""
        layout = self.layout
        return max(1.0, layout.ranks / (layout.pp * layout.ep * layout.etp))

    @property
    def fsdp(self) -> bool:
        """Whether Megatron-FSDP shards more than the optimizer."""
        return self.techniques.sharding in {Sharding.optim_grads, Sharding.optim_grads_params}

    @property
    def vp(self) -> int:
        """Model chunks on each stage."""
        return self.layout.vp


Accept: TypeAlias = Callable[[Job], bool]
"""Whether somebody takes a job, as the training side does with what it can run."""


def accept_all(_: Job) -> bool:
    """Takes every job."""
    return True


# --------------------------------------------------------------------------- bytes of the formats

_FP8 = {LowPrecision.fp8_delayed, LowPrecision.fp8_current, LowPrecision.fp8_blockwise}
# One quantized value with its share of scales: per tensor, 128 values, 32 values, 16 values.
_QUANTIZED_BYTES = {
    LowPrecision.fp8_delayed: 1.0,
    LowPrecision.fp8_current: 1.0,
    LowPrecision.fp8_blockwise: 1.0 + 4 / 128,
    LowPrecision.mxfp8: 1.0 + 1 / 32,
    LowPrecision.nvfp4: 0.5 + 1 / 16,
}
# Blackwell multiplies fp8 in any layout; before it the transposed copy is needed as well.
_ANY_FP8_LAYOUT = 100


def element_bytes(dtype: DType) -> int:
    """Bytes of one weight or activation."""
    return 4 if dtype is DType.fp32 else 2


def saved_input_bytes(precision: Precision) -> float:
    """Bytes of one value that a linear layer keeps of its input."""
    if precision.low_precision is None:
        return float(element_bytes(precision.dtype))
    return _QUANTIZED_BYTES[precision.low_precision]


def quantized_copies(job: Job) -> float:
    """Bytes of the low-precision copies of one weight that stay cached, both orientations where they are needed."""
    kind = job.precision.low_precision
    if kind is None:
        return 0.0
    per_tensor = kind in {LowPrecision.fp8_delayed, LowPrecision.fp8_current}
    one = per_tensor and (job.gpu.compute_capability or 0) >= _ANY_FP8_LAYOUT
    return _QUANTIZED_BYTES[kind] * (1 if one else 2)


def linear_weight_bytes(job: Job) -> float:
    """Bytes held for one weight of a layer's linear map: itself, and its quantized copies.

    Weights that are gathered in the low-precision format exist only in it.
    """
    copies = quantized_copies(job)
    return copies if copies and job.precision.low_precision_params else element_bytes(job.precision.dtype) + copies


def gradient_bytes(job: Job) -> int:
    """Bytes of one accumulated gradient; fp16 accumulates in fp16, its fp32 copy counts as optimizer state."""
    match job.precision.dtype:
        case DType.fp32:
            return 4
        case DType.fp16:
            return 2
        case DType.bf16:
            return element_bytes(job.techniques.grads)


def optimizer_bytes(job: Job) -> float:
    """Bytes of Adam's state for one parameter, before it is divided (planner table of modes).

    Master weight and two moments; the precision-aware optimizer keeps only the 16 bits of the master that a bf16
    parameter lacks. fp16 keeps an fp32 copy of the gradient too.
    """
    moments = 2.0 * element_bytes(job.techniques.moments)
    match job.precision.dtype:
        case DType.fp32:
            return moments
        case DType.fp16:
            return 8.0 + moments
        case DType.bf16:
            remainder = job.techniques.param_remainders and not job.precision.low_precision_params
            return (2.0 if remainder else 4.0) + moments


def is_fp8(precision: Precision) -> bool:
    """Whether linear layers compute in 8-bit floats without micro-scaling."""
    return precision.low_precision in _FP8


def recomputes(job: Job, module: str) -> bool:
    """Whether selective recompute covers a module."""
    techniques = job.techniques
    return techniques.recompute is Recompute.selective and module in techniques.recompute_modules
