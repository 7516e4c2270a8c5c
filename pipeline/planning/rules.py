"""What Megatron-Core, Transformer Engine and the hardware refuse, beyond sizes and batch: our own table of rules.

A contract test holds it to the real configuration classes. Each problem names both sides and a way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.model_math import fc1_widths, has_linear_bias, head_dim
from pipeline.planning.job import Job
from pipeline.planning.layout import Problem, check_layout
from pipeline.planning.stages import chunk_sizes
from pipeline.types import CpComm, DType, LowPrecision, Recipe, Recompute, RecomputeMethod, Sharding

Rule = Callable[[Job], Iterator[Problem]]

MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Modules that selective recompute knows (megatron-core 0.16)."""
# Compute capability from which a format exists, and what its last dimensions must be multiples of.
_NEEDS = {
    LowPrecision.fp8_delayed: (89, 16),
    LowPrecision.fp8_current: (89, 16),
    LowPrecision.fp8_blockwise: (90, 16),
    LowPrecision.mxfp8: (100, 32),
    LowPrecision.nvfp4: (100, 16),
}


def check_job(job: Job) -> list[Problem]:
    """All problems of a job at once."""
    return [problem for rule in _RULES for problem in rule(job)]


def least_capability(low: LowPrecision) -> int:
    """Compute capability from which a format exists, times ten."""
    return _NEEDS[low][0]


def is_legal(job: Job) -> bool:
    """Whether no rule of sizes, of Megatron-Core or of the hardware is broken."""
    layout = job.layout
    recipe = Recipe(
        name="",
        steps=1,
        sequence_length=job.sequence_length,
        micro_batch=layout.micro_batch,
        global_batch=layout.global_batch,
    )
    return not (check_layout(layout, job.model, recipe) or check_job(job))


# --------------------------------------------------------------------------- pipeline


def _interleaving(job: Job) -> Iterator[Problem]:
    layout, layers = job.layout, job.model.num_layers
    if layout.vp == 1:
        return
    if layout.pp == 1:
        yield Problem(
            "vp", f"layout.vp: got {layout.vp} with pp 1; chunks need a pipeline: drop layout.vp or give layout.pp"
        )
        return
    if layers % (layout.pp * layout.vp) and not layout.chunk_layers:
        yield Problem(
            "vp_layers",
            f"layout.vp: {layers} layers can't be split over pp {layout.pp} x vp {layout.vp} chunks evenly; "
            f"give a layout.vp that divides {layers // layout.pp}, or layout.chunk_layers",
        )
    if layout.num_microbatches % layout.pp:
        yield Problem(
            "vp_micro_batches",
            f"layout.vp: the interleaved schedule takes micro-batches in groups of pp {layout.pp}, got "
            f"{layout.num_microbatches}; give recipe.global_batch a multiple of "
            f"{layout.pp * layout.micro_batch * layout.dp}, or drop layout.vp",
        )


def _chunk_layers(job: Job) -> Iterator[Problem]:
    given, chunks = job.layout.chunk_layers, job.layout.pp * job.layout.vp
    if given and (len(given) != chunks or sum(given) != job.model.num_layers or min(given) < 0):
        example = ",".join(map(str, chunk_sizes(job.model.num_layers, chunks)))
        yield Problem(
            "chunk_layers",
            f"layout.chunk_layers: got {len(given)} chunks of {sum(given)} layers, pp {job.layout.pp} x vp "
            f"{job.layout.vp} needs {chunks} of {job.model.num_layers}; e.g. layout.chunk_layers=[{example}]",
        )


# --------------------------------------------------------------------------- experts


def _experts(job: Job) -> Iterator[Problem]:
    layout, moe = job.layout, job.model.moe
    if moe is None:
        if layout.ep > 1 or layout.etp > 1:
            yield Problem(
                "ep" if layout.ep > 1 else "etp",
                f"layout.ep {layout.ep}, etp {layout.etp}: {job.model.name} has no experts; leave both at 1",
            )
        return
    if moe.num_experts % layout.ep:
        yield Problem(
            "experts", f"layout.ep: {moe.num_experts} experts can't be split over ep {layout.ep}; give a divisor"
        )
    if moe.top_k > moe.num_experts:
        yield Problem("top_k", f"model.moe.top_k: got {moe.top_k} of {moe.num_experts} experts; give at most as many")
    if moe.expert_ffn_hidden_size % layout.etp:
        yield Problem(
            "etp",
            f"layout.etp: expert_ffn_hidden_size {moe.expert_ffn_hidden_size} can't be split over etp {layout.etp}; "
            f"give a divisor",
        )
    parts = layout.pp * layout.ep * layout.etp
    if layout.ranks % parts:
        yield Problem(
            "expert_world",
            f"layout: pp {layout.pp} x ep {layout.ep} x etp {layout.etp} = {parts} must divide "
            f"the {layout.ranks} ranks",
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield Problem(
            "moe_sequence_parallel",
            f"layout.sequence_parallel: experts with tp {layout.tp} need it; give layout.sequence_parallel=true",
        )


# --------------------------------------------------------------------------- sequence


def _sequence(job: Job) -> Iterator[Problem]:
    layout, length = job.layout, job.sequence_length
    unit = 2 * layout.cp * layout.tp
    if layout.cp > 1 and layout.sequence_parallel and length % unit:
        yield Problem(
            "sequence_split",
            f"recipe.sequence_length: {length} must be a multiple of 2 x cp {layout.cp} x tp {layout.tp} = {unit}",
        )
    if layout.cp > 1 and job.techniques.cp_comm is CpComm.a2a:
        for name, heads in (("heads", job.model.num_attention_heads), ("groups", job.model.num_query_groups)):
            if heads % (layout.tp * layout.cp):
                yield Problem(
                    "cp_heads",
                    f"techniques.cp_comm: a2a divides {heads} {name} over tp {layout.tp} x cp {layout.cp}; "
                    f"give techniques.cp_comm=p2p or a smaller layout.cp",
                )


def _domain(job: Job) -> Iterator[Problem]:
    domain = job.node.nvlink_domain_gpus
    if domain is not None and job.layout.tp > domain:
        yield Problem(
            "tp_domain",
            f"layout.tp: {job.layout.tp} ranks don't fit in one NVLink domain of {domain} GPUs; give layout.tp of at "
            f"most {domain} and divide the rest with layout.pp or layout.cp",
        )


# --------------------------------------------------------------------------- formats


def _formats(job: Job) -> Iterator[Problem]:
    low, precision = job.precision.low_precision, job.precision
    if low is None:
        if precision.low_precision_params:
            yield Problem(
                "low_precision_params",
                "precision.low_precision_params: needs precision.low_precision, got none; name one or leave it false",
            )
        return
    if precision.dtype is DType.fp32:
        yield Problem("low_precision_dtype", f"precision: {low.value} needs dtype bf16 or fp16, got fp32")
    capability, (needed, unit) = job.gpu.compute_capability, _NEEDS[low]
    if capability is not None and capability < needed:
        there = ", ".join(kind.value for kind, (least, _) in _NEEDS.items() if least <= capability) or "none"
        yield Problem(
            "low_precision_gpu",
            f"precision.low_precision: {low.value} needs compute capability {needed / 10:g}, {job.gpu.name} has "
            f"{capability / 10:g}; formats it has: {there}",
        )
    yield from _dimensions(job, low, unit)


def _dimensions(job: Job, low: LowPrecision, unit: int) -> Iterator[Problem]:
    """Dimensions of every quantized matrix on one rank."""
    model, layout = job.model, job.layout
    sizes = {
        "hidden_size": model.hidden_size,
        "ffn_hidden_size / tp": model.ffn_hidden_size * fc1_widths(model) // layout.tp // fc1_widths(model),
        "heads x head_dim / tp": model.num_attention_heads * head_dim(model) // layout.tp,
        "tokens of a micro-batch / cp / tp": int(job.tokens) // job.sequence_split,
    }
    if model.moe:
        sizes["expert_ffn_hidden_size / etp"] = model.moe.expert_ffn_hidden_size // layout.etp
    for name, size in sizes.items():
        if size % unit:
            yield Problem(
                "low_precision_size",
                f"precision.low_precision: {low.value} needs multiples of {unit}, {name} is {size}; change the size, "
                f"the split, or the format",
            )


def _optimizer(job: Job) -> Iterator[Problem]:
    techniques, precision = job.techniques, job.precision
    aware = techniques.moments is not DType.fp32 or techniques.param_remainders
    if aware and not job.distributed_optimizer:
        yield Problem(
            "precision_aware",
            "techniques.moments, param_remainders: the precision-aware optimizer needs optimizer.distributed=true",
        )
    if techniques.param_remainders and (precision.dtype is not DType.bf16 or precision.low_precision_params):
        yield Problem(
            "param_remainders",
            "techniques.param_remainders: only bf16 parameters have remainders; leave it false with fp32, fp16 or "
            "precision.low_precision_params",
        )
    if techniques.grads is DType.fp16 or (techniques.grads is DType.bf16 and precision.dtype is not DType.bf16):
        yield Problem(
            "grads",
            f"techniques.grads: got {techniques.grads.value} with {precision.dtype.value} parameters; bf16 goes with "
            f"bf16 parameters, else fp32",
        )
    if not 0 <= techniques.optimizer_offload <= 1:
        yield Problem("offload", f"techniques.optimizer_offload: got {techniques.optimizer_offload}; allowed: 0 to 1")


# --------------------------------------------------------------------------- recompute and offload


def _recompute(job: Job) -> Iterator[Problem]:
    techniques = job.techniques
    match techniques.recompute:
        case Recompute.selective if not techniques.recompute_modules:
            yield Problem(
                "recompute_modules", f"techniques.recompute_modules: selective needs some of {', '.join(MODULES)}"
            )
        case Recompute.selective:
            yield from _modules(job)
        case Recompute.full:
            yield from _full(job)
        case Recompute.none if techniques.recompute_modules:
            yield Problem(
                "recompute_modules",
                "techniques.recompute_modules: named while techniques.recompute is none; give selective",
            )
        case _:
            return


def _modules(job: Job) -> Iterator[Problem]:
    model, delayed = job.model, job.precision.low_precision is LowPrecision.fp8_delayed
    shared = model.moe is not None and model.moe.shared_ffn_hidden_size > 0
    needs = {"moe_act": model.moe is not None, "moe": model.moe is not None, "mla_up_proj": model.mla is not None}
    needs["shared_experts"] = shared
    for module in job.techniques.recompute_modules:
        if module not in MODULES:
            yield Problem(
                "recompute_modules", f"techniques.recompute_modules: no {module}; there are {', '.join(MODULES)}"
            )
        elif not needs.get(module, True):
            yield Problem(
                "recompute_modules", f"techniques.recompute_modules: {model.name} has nothing that {module} names"
            )
        elif module in {"layernorm", "moe_act"} and delayed:
            yield Problem(
                "recompute_delayed",
                f"techniques.recompute_modules: {module} doesn't go with fp8_delayed; give precision.low_precision="
                f"fp8_current or leave {module} out",
            )
        elif module == "mlp" and has_linear_bias(model):
            yield Problem(
                "recompute_bias",
                "techniques.recompute_modules: mlp hangs in models with biases (its output carries the parameter); "
                "leave it out or give techniques.recompute=full",
            )


def _full(job: Job) -> Iterator[Problem]:
    techniques, layout = job.techniques, job.layout
    chunk = max(chunk_sizes(job.model.num_layers, layout.pp * layout.vp))
    if techniques.recompute_modules:
        yield Problem("recompute_modules", "techniques.recompute_modules: full recompute takes none; leave it empty")
    least = 0 if techniques.recompute_method is RecomputeMethod.block else 1
    if not least <= techniques.recompute_num_layers <= chunk:
        yield Problem(
            "recompute_num_layers",
            f"techniques.recompute_num_layers: got {techniques.recompute_num_layers}; allowed: {least} to the {chunk} "
            f"layers of a chunk",
        )
    if techniques.cuda_graphs:
        yield Problem(
            "recompute_graphs", "techniques.cuda_graphs: doesn't go with full recompute; give selective or no graphs"
        )


def _offload(job: Job) -> Iterator[Problem]:
    techniques, layers = job.techniques, job.techniques.activation_offload_layers
    if layers == 0:
        return
    if not 0 < layers < job.model.num_layers:
        yield Problem(
            "activation_offload",
            f"techniques.activation_offload_layers: got {layers}; allowed: 0 to {job.model.num_layers - 1}",
        )
    for reason, hit in (
        (f"pp {job.layout.pp}", job.layout.pp > 1),
        ("recompute", techniques.recompute is not Recompute.none),
        ("CUDA graphs", techniques.cuda_graphs),
    ):
        if hit:
            yield Problem(
                "activation_offload", f"techniques.activation_offload_layers: doesn't go with {reason}; use one of them"
            )


def _sharding(job: Job) -> Iterator[Problem]:
    if job.techniques.sharding is Sharding.none:
        return
    name = job.techniques.sharding.value
    if job.layout.pp > 1:
        yield Problem("fsdp_pp", f"techniques.sharding: {name} doesn't go with pp {job.layout.pp}; give layout.pp=1")
    if not job.distributed_optimizer:
        yield Problem("fsdp_optimizer", f"techniques.sharding: {name} needs optimizer.distributed=true")
    if job.precision.dtype is DType.fp16:
        yield Problem("fsdp_fp16", f"techniques.sharding: {name} doesn't go with fp16; give precision bf16")


_RULES: tuple[Rule, ...] = (
    _interleaving,
    _chunk_layers,
    _experts,
    _sequence,
    _domain,
    _formats,
    _optimizer,
    _recompute,
    _offload,
    _sharding,
)
