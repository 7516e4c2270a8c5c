"""Time of one optimizer step, part by part: roofline, collectives, pipeline bubble, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.model_math import (
    attention_flops_per_token,
    fc1_widths,
    matmul_parameters,
    num_moe_layers,
    padded_vocab_size,
)
from pipeline.planning.activations import routed_tokens
from pipeline.planning.collectives import Group, LinkModel, Network, exchange_s, gather_s, network, send_s
from pipeline.planning.job import Job, element_bytes, gradient_bytes, is_fp8, linear_weight_bytes, recomputes
from pipeline.planning.memory import end_parameters, layer_parameters
from pipeline.planning.stages import Stage, stages
from pipeline.types import Recompute, Sharding, StepTime


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedModel:
    """Shared parameters of the step-time model, the same for every GPU.

    Fitted once to 86 distinct dense configurations of NVIDIA's published Megatron runs with wide priors around them
    (planner priors, SimuMax, NCCL); what differs by GPU, format and software is the calibration's to say.
    """

    linear: dict[str, float] = field(default_factory=lambda: {"bf16": 0.72, "fp8": 0.65, "mxfp8": 0.56, "nvfp4": 0.48})
    """End-to-end fraction of peak that linear layers reach, by rate class."""
    grouped: float = 0.75
    """The same for many small experts, relative to `linear`."""
    attention: float = 0.58
    """Fraction of the bf16 peak that fused attention reaches; low-precision recipes leave it in bf16."""
    memory_passes: float = 4.8
    """Passes over the bytes of a layer's element-wise work, forward and backward."""
    memory: float = 0.9
    """Fraction of HBM bandwidth reached."""
    logit_bytes: float = 22.0
    """HBM traffic for each logit."""
    exposed_tensor: float = 0.43
    exposed_context: float = 0.31
    exposed_pipeline: float = 0.95
    exposed_expert: float = 0.8
    exposed_data: float = 0.05
    """Fractions of communication that computation doesn't hide."""
    layer_overhead_s: float = 1.0e-4
    """Least time of a layer's forward and backward pass: launches and gaps."""
    links: LinkModel = field(default_factory=LinkModel)


def rate_class(job: Job) -> str:
    """Which peak the linear layers run against: bf16, fp8, mxfp8 or nvfp4."""
    low = job.precision.low_precision
    if low is None:
        return "bf16"
    return "fp8" if is_fp8(job.precision) else low.value


@dataclass(frozen=True, slots=True)
class _Pass:
    """One micro-batch on one stage, forward and backward, seconds."""

    linear: float
    attention: float
    memory: float
    recompute: float
    tensor: float
    context: float
    expert: float

    @property
    def total(self) -> float:
        return self.linear + self.attention + self.memory + self.recompute + self.tensor + self.context + self.expert


def step_time(job: Job, model: SpeedModel, gpus_per_node: int) -> StepTime:
    """Seconds of each part of a step; (m + (pp - 1)/vp) passes of the slowest stage, and what follows them.

    Raises KeyError when the GPU has no peak rate for the job's format.
    """
    links = network(job, gpus_per_node)
    layout = job.layout
    one = max((_stage_pass(job, stage, model, links) for stage in stages(job)), key=lambda found: found.total)
    micro, bubble = layout.num_microbatches, (layout.pp - 1) / job.vp
    sends = _pipeline_sends(job, model, links)
    return StepTime(
        linear_s=micro * one.linear,
        attention_s=micro * one.attention,
        memory_bound_s=micro * one.memory,
        recompute_s=micro * one.recompute,
        tensor_parallel_s=micro * one.tensor,
        context_parallel_s=micro * one.context,
        expert_parallel_s=micro * one.expert,
        pipeline_s=bubble * one.total + (micro + bubble) * sends,
        data_parallel_s=_data_parallel(job, model, links, one.total),
        optimizer_s=_optimizer(job),
    )


# --------------------------------------------------------------------------- one stage


def _stage_pass(job: Job, stage: Stage, model: SpeedModel, links: Network) -> _Pass:
    peak = job.gpu.peak_tflops[rate_class(job)] * 1e12 * model.linear[rate_class(job)]
    half = job.gpu.peak_tflops["bf16"] * 1e12
    linear = _linear(job, stage, peak, peak * model.grouped, model)
    head = 2 * job.tokens * _vocab(job) * job.model.hidden_size / job.layout.tp if stage.last else 0.0
    attention = _attention_flops(job, stage) / (half * model.attention)
    memory = _memory_bound(job, stage, model)
    overhead = stage.layers * model.layer_overhead_s
    return _Pass(
        linear=3 * linear + 3 * head / (half * model.linear["bf16"]),
        attention=3.5 * attention,
        memory=max(memory, overhead - 3 * linear - 3.5 * attention),
        recompute=_recompute_share(job, stage, linear, attention) + (memory / 3 if _all_again(job) else 0.0),
        tensor=_tensor_parallel(job, stage, model, links),
        context=_context_parallel(job, stage, model, links),
        expert=_expert_parallel(job, stage, model, links),
    )


def _linear(job: Job, stage: Stage, peak: float, grouped_peak: float, model: SpeedModel) -> float:
    """A third of forward and backward of all linear layers: bound by arithmetic or by reading their weights.

    A micro-batch reads each weight twice and adds to its gradient once; with few tokens for each expert that takes
    longer than the arithmetic.
    """
    flops, held = _layer_flops(job, stage), layer_parameters(job, stage)
    bytes_moved = 2 * element_bytes(job.precision.dtype) + 2 * gradient_bytes(job)
    bandwidth = (job.gpu.hbm_tb_per_s or 1.0) * 1e12 * model.memory
    rates = (peak, grouped_peak)
    return sum(
        max(one / rate, parameters * bytes_moved / bandwidth / 3)
        for one, rate, parameters in zip(flops, rates, held, strict=True)
    )


def _vocab(job: Job) -> int:
    return padded_vocab_size(job.model.vocab_size, job.layout.tp)


def _layer_flops(job: Job, stage: Stage) -> tuple[float, float]:
    """(dense, expert) forward FLOPs of a stage's linear layers for one micro-batch."""
    model, tokens = job.model, job.tokens / job.layout.tp
    attention = matmul_parameters(model, 0) - _feed_forward(job)
    per_layer = attention / model.num_layers
    ups = fc1_widths(model) + 1
    dense = stage.layers * per_layer + stage.dense_layers * ups * model.hidden_size * model.ffn_hidden_size
    if model.moe is None:
        return 2 * tokens * dense, 0.0
    dense += stage.moe_layers * ups * model.hidden_size * model.moe.shared_ffn_hidden_size
    width = model.moe.expert_ffn_hidden_size / job.layout.etp
    experts = stage.moe_layers * ups * model.hidden_size * width * routed_tokens(job, model.moe)
    return 2 * tokens * dense, 2 * experts


def _feed_forward(job: Job) -> float:
    """Active parameters of all MLPs."""
    model = job.model
    ups, moe_layers = fc1_widths(model) + 1, num_moe_layers(model)
    total = (model.num_layers - moe_layers) * ups * model.hidden_size * model.ffn_hidden_size
    if model.moe:
        active = model.moe.top_k * model.moe.expert_ffn_hidden_size + model.moe.shared_ffn_hidden_size
        total += moe_layers * ups * model.hidden_size * active
    return float(total)


def _attention_flops(job: Job, stage: Stage) -> float:
    """Forward FLOPs of scores and weighted sums; context-parallel ranks each see the whole sequence of keys."""
    share = stage.layers / job.model.num_layers
    return share * attention_flops_per_token(job.model, job.sequence_length) * job.tokens / job.layout.tp


def _memory_bound(job: Job, stage: Stage, model: SpeedModel) -> float:
    """Norms, residuals, rotary embeddings, activation, quantization, loss: bytes over bandwidth."""
    shape, bandwidth = job.model, (job.gpu.hbm_tb_per_s or 1.0) * 1e12 * model.memory
    tokens, split = job.tokens / job.layout.tp, job.tokens / job.sequence_split
    width = stage.dense_layers * shape.ffn_hidden_size * tokens
    if shape.moe:
        routed = routed_tokens(job, shape.moe)
        width += stage.moe_layers * shape.moe.expert_ffn_hidden_size / job.layout.etp * routed
        width += stage.moe_layers * shape.moe.shared_ffn_hidden_size * tokens
        width += stage.moe_layers * shape.hidden_size * routed  # permuted copies
    layers = model.memory_passes * (40 * shape.hidden_size * split * stage.layers + 16 * width)
    logits = model.logit_bytes * job.tokens * _vocab(job) / job.layout.tp if stage.last else 0.0
    return (layers + logits) / bandwidth


def _all_again(job: Job) -> bool:
    return job.techniques.recompute is Recompute.full


def _recompute_share(job: Job, stage: Stage, linear: float, attention: float) -> float:
    """Forward passes run twice."""
    techniques, model = job.techniques, job.model
    if techniques.recompute is Recompute.full:
        part = 1.0
        if techniques.recompute_method.value == "block":
            part = min(1.0, techniques.recompute_num_layers * stage.chunks / max(1, stage.layers))
        return part * (linear + attention)
    again = attention if recomputes(job, "core_attn") else 0.0
    dense_mlp = (fc1_widths(model) + 1) * model.hidden_size * model.ffn_hidden_size * stage.dense_layers
    whole = matmul_parameters(model, 0) * stage.layers / model.num_layers
    if recomputes(job, "mlp"):
        again += linear * min(1.0, dense_mlp / whole)
    if recomputes(job, "moe"):
        again += 0.6 * linear
    return again


# --------------------------------------------------------------------------- communication


def _tensor_parallel(job: Job, stage: Stage, model: SpeedModel, links: Network) -> float:
    """Four all-gathers and four reduce-scatters of a layer's hidden states, two more when it runs again."""
    if job.layout.tp == 1:
        return 0.0
    hidden = element_bytes(job.precision.dtype) * job.tokens * job.model.hidden_size
    one = gather_s(hidden, Group(job.layout.tp, 1), links, model.links)
    return (10 if _all_again(job) else 8) * stage.layers * one * model.exposed_tensor


def _context_parallel(job: Job, stage: Stage, model: SpeedModel, links: Network) -> float:
    """Keys and values around the ring: once forward, twice backward."""
    if job.layout.cp == 1:
        return 0.0
    width = job.model.num_query_groups * (job.model.head_dim or job.model.hidden_size // job.model.num_attention_heads)
    total = 2 * element_bytes(job.precision.dtype) * job.tokens * job.layout.cp * width / job.layout.tp
    one = gather_s(total, Group(job.layout.cp, job.layout.tp), links, model.links)
    return 3 * stage.layers * one * model.exposed_context


def _expert_parallel(job: Job, stage: Stage, model: SpeedModel, links: Network) -> float:
    """Dispatch and combine, forward and backward."""
    moe = job.model.moe
    if moe is None or job.layout.ep == 1:
        return 0.0
    sent = element_bytes(job.precision.dtype) * job.model.hidden_size * routed_tokens(job, moe)
    one = exchange_s(sent, Group(job.layout.ep, job.layout.etp), links, model.links)
    return 4 * stage.moe_layers * one * model.exposed_expert


def _pipeline_sends(job: Job, model: SpeedModel, links: Network) -> float:
    """Exposed sends of one micro-batch: activations on, gradients back, once for each chunk."""
    layout = job.layout
    if layout.pp == 1:
        return 0.0
    message = element_bytes(job.precision.dtype) * job.tokens * job.model.hidden_size / layout.tp
    stride = layout.tp * layout.cp * layout.dp
    return 2 * job.vp * send_s(message, stride, links, model.links) * model.exposed_pipeline


def _data_parallel(job: Job, model: SpeedModel, links: Network, one_pass_s: float) -> float:
    """Gradients reduced and weights gathered once a step, or with FSDP in every micro-batch; what computation of one
    micro-batch doesn't hide."""
    group = Group(job.data_ranks, job.layout.tp)
    stage = stages(job)[0]
    dense, experts = layer_parameters(job, stage)
    held = dense + end_parameters(job, stage)
    sharing = Group(int(job.expert_data_ranks), job.layout.ep * job.layout.etp)
    weights = min(element_bytes(job.precision.dtype), linear_weight_bytes(job))
    grad = gradient_bytes(job)
    reduce = gather_s(grad * held, group, links, model.links) + gather_s(grad * experts, sharing, links, model.links)
    gather = gather_s(weights * held, group, links, model.links)
    gather += gather_s(weights * experts, sharing, links, model.links)
    if job.techniques.sharding is Sharding.none:
        total = reduce + gather
        return max(model.exposed_data * total, total - one_pass_s)
    passes = job.layout.num_microbatches
    gathers = 2 * gather if job.techniques.sharding is Sharding.optim_grads_params else gather / passes
    total = passes * (reduce * element_bytes(job.precision.dtype) / grad + gathers)
    return max(2 * model.exposed_data * total, total - passes * one_pass_s)


def _optimizer(job: Job) -> float:
    """Adam's update, bound by memory: about 30 bytes for each parameter of the shard, 6 for each held."""
    stage = stages(job)[0]
    dense, experts = layer_parameters(job, stage)
    dense += end_parameters(job, stage)
    shards = float(job.data_ranks) if job.distributed_optimizer else 1.0
    bytes_moved = (30 / shards + 6) * dense + (30 / job.expert_data_ranks + 6) * experts
    return bytes_moved / ((job.gpu.hbm_tb_per_s or 1.0) * 1e12)
