"""Memory of each pipeline stage at its peak: expected, least and most, against what the GPU gives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pipeline.model_math import (
    embedding_parameters,
    fc1_widths,
    head_dim,
    layer_weights,
    norm_parameters,
    padded_vocab_size,
    rank_parameters,
)
from pipeline.planning.activations import LayerActivations, layer_activations
from pipeline.planning.job import (
    GIB,
    Job,
    element_bytes,
    gradient_bytes,
    linear_weight_bytes,
    optimizer_bytes,
)
from pipeline.planning.stages import Stage, stages
from pipeline.types import (
    CrossEntropy,
    Fit,
    LowPrecision,
    MemoryEstimate,
    Recompute,
    RecomputeMethod,
    Sharding,
    StageMemory,
)

# Bytes of one logit at the loss. Transformer Engine writes the gradient over the bf16 logits. The others keep the
# bf16 logits and an fp32 copy that becomes the softmax; Megatron-Core's fused kernel writes that out of place.
LOSS_BYTES = {CrossEntropy.te: 2.0, CrossEntropy.unfused: 6.0, CrossEntropy.native: 10.0, CrossEntropy.linear: 0.1}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySpread:
    """How far the device's use may lie from the analytic allocation."""

    error: float
    """Relative error of the allocation at 95 %."""
    reserve: float
    """Reserved by the allocator / allocated, typical."""
    reserve_high: float
    outside_gib: float
    """Context, NCCL and library workspaces."""
    outside_high_gib: float
    outside_low_gib: float = 2.0


_DENSE = MemorySpread(error=0.02, reserve=1.06, reserve_high=1.12, outside_gib=3.0, outside_high_gib=4.0)
_MOE = dataclasses.replace(_DENSE, error=0.05, reserve_high=1.15)
_LOW = dataclasses.replace(_DENSE, error=0.15)
_FP4 = MemorySpread(error=0.15, reserve=1.15, reserve_high=1.30, outside_gib=3.0, outside_high_gib=4.0)
# An even split of tokens over experts is the least; ranks with popular experts were seen 10 % above the others.
_HOT_EXPERTS = 1.25


def spread(job: Job) -> MemorySpread:
    """Priors by kind of job; see docs/validation.md for what they cover."""
    if job.precision.low_precision is LowPrecision.nvfp4:
        return _FP4
    chosen = _LOW if job.precision.low_precision else (_MOE if job.model.moe else _DENSE)
    return (
        dataclasses.replace(chosen, reserve=1.02, reserve_high=1.06) if job.techniques.expandable_segments else chosen
    )


def estimate_memory(job: Job) -> MemoryEstimate:
    """Memory of every stage and the verdict: REFUSED only when the lower bound doesn't fit."""
    capacity = job.gpu.memory_gib
    if capacity is None:
        raise ValueError(f"{job.gpu.name}: memory_gib is unknown")
    found = stage_memories(job)
    if max(stage.lower_gib for stage in found) > capacity:
        fit = Fit.refused
    else:
        fit = Fit.fits if max(stage.upper_gib for stage in found) <= capacity else Fit.at_risk
    return MemoryEstimate(stages=found, capacity_gib=capacity, fit=fit)


def stage_memories(job: Job) -> tuple[StageMemory, ...]:
    """Memory of every stage."""
    dense = layer_activations(job, moe_layer=False)
    moe = layer_activations(job, moe_layer=True) if job.model.moe else dense
    return tuple(_stage_memory(job, stage, dense, moe) for stage in stages(job))


def _stage_memory(job: Job, stage: Stage, dense: LayerActivations, moe: LayerActivations) -> StageMemory:
    weights, gradients, optimizer = static_bytes(job, stage)
    stored = _stored(job, stage, dense, moe)
    loss, transient = _peak(job, stage, dense, moe)
    cache = _wgrad_cache(job, stage)
    allocated = (weights + gradients + optimizer + stored + loss + transient + cache) / GIB
    wide = spread(job)
    hot = (_HOT_EXPERTS - 1) * stored / GIB if stage.moe_layers and job.model.moe else 0.0
    point = allocated * wide.reserve + wide.outside_gib
    spare = sum(_live(job, stage)) / 2 / GIB if job.fsdp else 0.0  # nothing prefetched
    low, high = (allocated - spare) * (1 - wide.error), allocated * (1 + wide.error) + hot
    return StageMemory(
        stage=stage.index,
        layers=stage.layers,
        weights_gib=weights / GIB,
        gradients_gib=gradients / GIB,
        optimizer_gib=optimizer / GIB,
        activations_gib=stored / GIB,
        loss_gib=loss / GIB,
        transient_gib=(transient + cache) / GIB,
        outside_torch_gib=point - allocated,
        allocated_gib=allocated,
        allocated_low_gib=low,
        allocated_high_gib=high,
        point_gib=point,
        lower_gib=low + wide.outside_low_gib,
        upper_gib=high * wide.reserve_high + wide.outside_high_gib,
    )


# --------------------------------------------------------------------------- weights, gradients, optimizer


def static_bytes(job: Job, stage: Stage) -> tuple[float, float, float]:
    """(weights, gradients, optimizer) bytes of one rank.

    P*(w + g) + P*s/D, dense parameters over data and context parallel ranks, experts over theirs; with
    Megatron-FSDP gradients, then weights, are divided too and the units in use are whole: see `_live`.
    """
    layers, experts = layer_parameters(job, stage)
    plain = end_parameters(job, stage)
    element, linear, grad = element_bytes(job.precision.dtype), linear_weight_bytes(job), gradient_bytes(job)
    state = optimizer_bytes(job) * (1 - job.techniques.optimizer_offload)
    shared, shared_experts = _shares(job)
    optimizer = state * ((layers + plain) / shared + experts / shared_experts)
    weights = linear * (layers + experts) + element * plain
    gradients = float(grad * (layers + experts + plain))
    if not job.fsdp:
        return weights, gradients, optimizer
    live_weights, live_gradients = _live(job, stage)
    gradients = grad * ((layers + plain) / shared + experts / shared_experts) + live_gradients
    if job.techniques.sharding is Sharding.optim_grads_params:
        weights = (linear * layers + element * plain) / shared + linear * experts / shared_experts + live_weights
    return weights, gradients, optimizer


def _live(job: Job, stage: Stage) -> tuple[float, float]:
    """(weights, gradients) bytes that FSDP holds whole: the layer in use, the next one, the ends of the model."""
    dense, experts = layer_parameters(job, stage)
    unit, plain = (dense + experts) / max(1, stage.layers), end_parameters(job, stage)
    element = element_bytes(job.precision.dtype)
    return 2 * linear_weight_bytes(job) * unit + element * plain, element * (unit + plain)


def _shares(job: Job) -> tuple[float, float]:
    """Among how many ranks the optimizer state of dense parameters and of experts is divided."""
    if not (job.distributed_optimizer or job.fsdp):
        return 1.0, 1.0
    return float(job.data_ranks), job.expert_data_ranks


def layer_parameters(job: Job, stage: Stage) -> tuple[float, float]:
    """(dense, expert) parameters of a stage's layers on one rank."""
    dense, experts = 0.0, 0.0
    for count, layer in ((stage.dense_layers, 0), (stage.moe_layers, job.model.num_layers - 1)):
        if count:
            one, many = rank_parameters(
                layer_weights(job.model, layer), tp=job.layout.tp, ep=job.layout.ep, etp=job.layout.etp
            )
            dense, experts = dense + count * one, experts + count * many
    return dense, experts


def end_parameters(job: Job, stage: Stage) -> float:
    """Embedding on the first stage, output layer and final norm on the last; a tied matrix stands on both."""
    model, tp = job.model, job.layout.tp
    vocab = padded_vocab_size(model.vocab_size, tp)
    matrix = vocab * model.hidden_size / tp
    held = embedding_parameters(model, vocab) - vocab * model.hidden_size + matrix if stage.first else 0.0
    if stage.last:
        alone = stage.first and model.tied_embeddings
        held += norm_parameters(model) + (0.0 if alone else matrix)
    return held


# --------------------------------------------------------------------------- activations


def _stored(job: Job, stage: Stage, dense: LayerActivations, moe: LayerActivations) -> float:
    """Activations kept over all chunks in flight, the embedding's output and buffers of the pipeline included."""
    per_chunk = _kept(job, stage, dense, moe) / stage.chunks
    boundary = element_bytes(job.precision.dtype) * job.model.hidden_size * job.tokens / job.sequence_split
    embedding = boundary * stage.chunks_in_flight / stage.chunks if stage.first else 0.0
    receive = 2 * boundary if job.layout.pp > 1 else 0.0
    return per_chunk * stage.chunks_in_flight + embedding + receive


def _kept(job: Job, stage: Stage, dense: LayerActivations, moe: LayerActivations) -> float:
    """Bytes one micro-batch leaves in all layers of a stage."""
    techniques = job.techniques
    whole = stage.dense_layers * dense.working + stage.moe_layers * moe.working
    stored = stage.dense_layers * dense.stored + stage.moe_layers * moe.stored
    if techniques.recompute is Recompute.full:
        if techniques.recompute_method is RecomputeMethod.uniform:
            stored /= max(1, techniques.recompute_num_layers)
        else:  # the rest of each chunk is kept whole
            part = min(1.0, techniques.recompute_num_layers * stage.chunks / max(1, stage.layers))
            stored = part * stored + (1 - part) * whole
    offloaded = max(0, min(techniques.activation_offload_layers, stage.layers) - 2)  # two are on their way
    return stored * (1 - offloaded / max(1, stage.layers))


def _peak(job: Job, stage: Stage, dense: LayerActivations, moe: LayerActivations) -> tuple[float, float]:
    """(loss, transient) bytes at the stage's peak: at the loss, or in the backward pass of its largest layer."""
    backward = max(
        (_backward(job, layer) for count, layer in ((stage.dense_layers, dense), (stage.moe_layers, moe)) if count),
        default=0.0,
    )
    loss = loss_bytes(job) if stage.last else 0.0
    return (loss, 0.0) if loss > backward else (0.0, backward)


def _backward(job: Job, layer: LayerActivations) -> float:
    again = 0.0
    if job.techniques.recompute is Recompute.full:
        groups = job.techniques.recompute_num_layers
        again = layer.working * (groups if job.techniques.recompute_method is RecomputeMethod.uniform else 1)
    return again + layer.backward


def loss_bytes(job: Job) -> float:
    """Logits and what the loss makes of them, the input of the output layer and its gathered copy."""
    tp, hidden, tokens = job.layout.tp, job.model.hidden_size, job.tokens
    vocab = padded_vocab_size(job.model.vocab_size, tp)
    element = element_bytes(job.precision.dtype)
    gathered = element * hidden * tokens if job.sequence_split > 1 else 0.0
    return LOSS_BYTES[job.techniques.cross_entropy] * tokens * vocab / tp + element * hidden * tokens / tp + gathered


def _wgrad_cache(job: Job, stage: Stage) -> float:
    """Weight gradients of one layer's distinct matrices, and of the output layer, before they are accumulated."""
    model, tp, element = job.model, job.layout.tp, element_bytes(job.precision.dtype)
    width = head_dim(model)
    heads = (2 * model.num_attention_heads + 2 * model.num_query_groups) * width
    matrices = model.hidden_size * (heads + (fc1_widths(model) + 1) * model.ffn_hidden_size) / tp
    if job.model.moe and not stage.dense_layers:
        moe = job.model.moe
        matrices = model.hidden_size * (heads / tp + (fc1_widths(model) + 1) * moe.expert_ffn_hidden_size)
    head = padded_vocab_size(model.vocab_size, tp) * model.hidden_size / tp if stage.last else 0.0
    return element * (matrices + head)
