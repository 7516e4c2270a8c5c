"""Bytes that one layer keeps for its backward pass, and what recompute leaves of them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.model_math import fc1_widths, head_dim
from pipeline.planning.job import Job, element_bytes, recomputes, saved_input_bytes
from pipeline.types import CpComm, MlaSpec, MoeSpec, Recompute


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """One layer, one micro-batch, one rank; bytes."""

    stored: float
    """Kept until the backward pass."""
    working: float
    """What the layer would keep without recompute: it exists again while its backward pass runs."""
    backward: float
    """Buffers of the backward pass beside it."""


def layer_activations(job: Job, *, moe_layer: bool) -> LayerActivations:
    """Stored and temporary bytes of one layer.

    Terms follow Transformer Engine's modules with flash attention and no dropout, after Korthikanti et al.
    (arXiv:2205.05198) with the saved tensors read from code; T tokens, sequence-parallel parts divided by tp.
    """
    attention, norms = _attention(job), _norms(job, moe_layer=moe_layer)
    moe = job.model.moe if moe_layer else None
    feed_forward = _moe(job, moe) if moe else _mlp(job)
    everything = _inputs(job) + norms + attention.total + feed_forward.total
    backward = max(attention.backward, feed_forward.backward)
    if job.techniques.recompute is Recompute.full:
        return LayerActivations(_layer_input(job), everything, backward)
    dropped = (norms if recomputes(job, "layernorm") else 0.0) + attention.dropped + feed_forward.dropped
    again = max(attention.dropped, feed_forward.dropped)
    return LayerActivations(everything - dropped, everything, backward + again)


@dataclass(frozen=True, slots=True)
class _Part:
    total: float
    dropped: float
    """Of the total, what selective recompute doesn't keep."""
    backward: float


def _layer_input(job: Job) -> float:
    return element_bytes(job.precision.dtype) * job.model.hidden_size * job.tokens / job.sequence_split


def _inputs(job: Job) -> float:
    """The residual stream before each of the two norms, and the masks of dropout, one byte a value."""
    masks = 2 * job.model.hidden_size * job.tokens / job.sequence_split if job.model.hidden_dropout else 0.0
    return 2 * _layer_input(job) + masks


def _norms(job: Job, *, moe_layer: bool) -> float:
    """Outputs of the two norms: the saved inputs of the linear layers that follow.

    Before experts and before latent attention the norm's output stays in full, several readers share it.
    """
    full, saved = float(element_bytes(job.precision.dtype)), saved_input_bytes(job.precision)
    first = full if job.model.mla else saved
    second = full if moe_layer else saved
    return (first + second) * job.model.hidden_size * job.tokens / job.sequence_split


def _attention(job: Job) -> _Part:
    if job.model.mla:
        return _latent_attention(job, job.model.mla)
    model, element = job.model, element_bytes(job.precision.dtype)
    width, tokens = head_dim(model), job.tokens / job.layout.tp
    query = model.num_attention_heads * width
    groups = max(model.num_query_groups, job.layout.tp) * width
    core = element * (2 * query + 2 * groups) * tokens + 4 * model.num_attention_heads * tokens
    core += _normed_heads(job, element * (query + groups) * tokens) + _quantized_output(job, query * tokens)
    core += _exchanged_output(job, element * query * tokens)
    ring = 8 * groups * tokens if job.layout.cp > 1 and job.techniques.cp_comm is CpComm.p2p else 0.0
    return _Part(core, 0.0, 2 * element * (query + groups) * tokens + ring)


def _exchanged_output(job: Job, output: float) -> float:
    """With all-to-all context parallelism the output is kept before and after the exchange (TE >= 2.8)."""
    return output if job.layout.cp > 1 and job.techniques.cp_comm is CpComm.a2a else 0.0


def _normed_heads(job: Job, bytes_of_query_and_key: float) -> float:
    """Queries and keys before their norm, where there is one."""
    return bytes_of_query_and_key if job.model.qk_norm else 0.0


def _quantized_output(job: Job, values: float) -> float:
    """Attention keeps its output for its own backward pass; the projection after it keeps a quantized copy."""
    return saved_input_bytes(job.precision) * values if job.precision.low_precision else 0.0


def _latent_attention(job: Job, mla: MlaSpec) -> _Part:
    """Latents are whole on every tp rank (their sequence split apart); heads are divided."""
    model, element, saved = job.model, element_bytes(job.precision.dtype), saved_input_bytes(job.precision)
    tokens, split = job.tokens / job.layout.tp, job.tokens / job.sequence_split
    heads = model.num_attention_heads
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    down = (element * (latents + mla.qk_rope_dim) + saved * latents) * split
    query_key = element * heads * 2 * (mla.qk_nope_dim + mla.qk_rope_dim) * tokens
    value = element * heads * mla.v_dim * tokens
    output = value + 4 * heads * tokens + _quantized_output(job, heads * mla.v_dim * tokens)
    up = query_key + value
    dropped = up if recomputes(job, "mla_up_proj") else 0.0
    return _Part(down + up + output, dropped, up + value)


def _mlp(job: Job) -> _Part:
    element, tokens = element_bytes(job.precision.dtype), job.tokens / job.layout.tp
    hidden, ffn, ups = job.model.hidden_size, job.model.ffn_hidden_size, fc1_widths(job.model)
    inner = (element * ups + saved_input_bytes(job.precision)) * ffn * tokens
    gathered = 2 * element * hidden * job.tokens if job.sequence_split > 1 else 0.0
    backward = element * ((ups + 1) * ffn * tokens + hidden * job.tokens / job.sequence_split) + gathered
    return _Part(inner, inner if recomputes(job, "mlp") else 0.0, backward)


def routed_tokens(job: Job, moe: MoeSpec) -> float:
    """Tokens that the experts of one rank work on: an even share of all copies, padded to capacity where one is set."""
    return job.tokens / job.layout.tp * moe.top_k * job.layout.etp * (moe.capacity_factor or 1.0)


def _moe(job: Job, moe: MoeSpec) -> _Part:
    """Router, dispatched copies, experts and the shared expert."""
    model, element, saved = job.model, element_bytes(job.precision.dtype), saved_input_bytes(job.precision)
    ups, routed, split = fc1_widths(model), routed_tokens(job, moe), job.tokens / job.sequence_split
    width = moe.expert_ffn_hidden_size / job.layout.etp
    router = 9 * moe.num_experts * split
    dispatched, combined = saved * model.hidden_size * routed, element * model.hidden_size * routed
    first, activation = element * ups * width * routed, saved * width * routed
    shared = (element * ups + saved) * moe.shared_ffn_hidden_size * job.tokens / job.layout.tp
    experts = dispatched + first + activation + combined + 4 * routed
    dropped = experts if recomputes(job, "moe") else (activation if recomputes(job, "moe_act") else 0.0)
    dropped += shared if recomputes(job, "shared_experts") else 0.0
    backward = element * ((ups + 1) * width + 2 * model.hidden_size) * routed
    return _Part(router + experts + shared, dropped, backward)
