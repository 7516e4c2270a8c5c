"""Asks Megatron-Core's own configuration classes which jobs they accept: `python megatron_config_probe.py`.

Whole kinds of jobs: every size and technique alone, and a few thousand combinations drawn with a fixed seed. Nothing
is built, so a case costs a fraction of a millisecond.
"""

from __future__ import annotations

import json
import random
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "planning"))

from planning_jobs import job, shape

from pipeline.model_math import head_dim
from pipeline.planning.job import Job
from pipeline.planning.layout import check_layout
from pipeline.planning.rules import check_job
from pipeline.types import (
    CpComm,
    DType,
    LowPrecision,
    ModelSpec,
    Recipe,
    Recompute,
    RecomputeMethod,
    Sharding,
)

COMBINATIONS = 3_000
_DENSE = {
    "num_layers": 8,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "num_query_groups": 4,
    "vocab_size": 32000,
}
_MOE = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512}
_MLA = {"kv_lora_rank": 512, "q_lora_rank": 256, "qk_nope_dim": 64, "qk_rope_dim": 32, "v_dim": 64}
MODELS: dict[str, ModelSpec] = {
    "dense": shape("dense", _DENSE),
    "odd": shape("odd", _DENSE | {"num_layers": 6, "num_attention_heads": 12, "num_query_groups": 3, "head_dim": 64}),
    "gelu": shape("gelu", _DENSE | {"activation": "gelu", "num_query_groups": 16}),
    "moe": shape("moe", _DENSE | {"moe": _MOE}),
    "shared": shape("shared", _DENSE | {"moe": _MOE | {"shared_ffn_hidden_size": 1024}}),
    "latent": shape("latent", _DENSE | {"num_query_groups": 16, "moe": _MOE, "mla": _MLA}),
}
MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "nothing")
# Each key with all the values it is tried with, the usual one first.
KINDS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 3, 4),
    "vp": (1, 2, 3, 4),
    "cp": (1, 2, 4),
    "ep": (1, 2, 3, 8),
    "etp": (1, 2, 4),
    "dp": (2, 1, 4, 8),
    "micro_batches": (12, 1, 4, 6),
    "split": (True, False),
    "low": (None, *(kind.value for kind in LowPrecision)),
    "gathered": (False, True),
    "recompute": tuple(Recompute),
    "recompute_modules": ([], *([name] for name in MODULES), ["layernorm", "mlp"]),
    "recompute_method": tuple(RecomputeMethod),
    "recompute_num_layers": (1, 0, 2, 5),
    "activation_offload_layers": (0, 2, 8),
    "cuda_graphs": (False, True),
    "grads": (DType.fp32, DType.bf16),
    "moments": (DType.fp32, DType.bf16),
    "param_remainders": (False, True),
    "cp_comm": tuple(CpComm),
    "sharding": tuple(Sharding),
    "distributed": (True, False),
}
# What has to be there for a key to mean something.
BESIDE: dict[str, dict[str, Any]] = {
    "vp": {"pp": 2},
    "cp_comm": {"cp": 2},
    "split": {"tp": 2},
    "gathered": {"low": "fp8_current"},
    "recompute_modules": {"recompute": Recompute.selective},
    "recompute_method": {"recompute": Recompute.full},
    "recompute_num_layers": {"recompute": Recompute.full},
}
Case = tuple[str, dict[str, Any]]


def cases() -> list[Case]:
    """(model, words) of every case."""
    usual = {key: values[0] for key, values in KINDS.items()}
    alone = [
        (name, usual | BESIDE.get(key, {}) | {key: value})
        for name in MODELS
        for key, values in KINDS.items()
        for value in values
    ]
    draw = random.Random(16)
    return [*alone, *((draw.choice(list(MODELS)), usual | _drawn(draw)) for _ in range(COMBINATIONS))]


def _drawn(draw: random.Random) -> dict[str, Any]:
    """Four keys at any of their values, and what has to be beside them."""
    keys = draw.sample(list(KINDS), 4)
    beside = [BESIDE.get(key, {}) for key in keys]
    return {name: value for one in beside for name, value in one.items()} | {
        key: draw.choice(KINDS[key]) for key in keys
    }


def case_job(case: Case) -> Job:
    """The job of a case, on a B200 so that every format exists."""
    name, words = case
    words = dict(words)
    batch = words.pop("micro_batches") * words["dp"]
    distributed = words.pop("distributed")
    found = job(MODELS[name], gpu_name="b200_sxm_180gb", batch=batch, seq=4096, **words)
    layout = replace(found.layout, nodes=1, ranks_per_node=words["tp"] * words["pp"] * words["cp"] * words["dp"])
    return replace(found, layout=layout, distributed_optimizer=distributed)


def our_answer(one: Job) -> set[str]:
    """Rules of ours that a job breaks."""
    layout = one.layout
    recipe = Recipe(
        name="", steps=1, sequence_length=4096, micro_batch=layout.micro_batch, global_batch=layout.global_batch
    )
    return {problem.rule for problem in (*check_layout(layout, one.model, recipe), *check_job(one))}


# --------------------------------------------------------------------------- Megatron-Core


def main() -> None:
    """Prints Megatron-Core's answers in the order of the cases, "" for yes."""
    warnings.simplefilter("ignore")
    from pipeline.training import cpu_backend

    cpu_backend.install()
    json.dump([megatron_answer(case_job(case)) for case in cases()], sys.stdout)


# What a machine without Transformer Engine can't answer; the versions it needs are rules of software.py.
_OF_THE_INSTALLATION = re.compile(r"transformer.?engine|FusedAdam|TE version|NoneType.*Version", re.I)


def megatron_answer(one: Job) -> str:
    """What Megatron-Core's classes have against a job; "" when nothing."""
    return next(
        filter(None, (_refusal(build, one) for build in (_ranks, _layers, _transformer, _optimizer, _schedule))), ""
    )


def _refusal(build: Any, one: Job) -> str:
    try:
        build(one)
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        text = f"{type(error).__name__}: {error}"
        return "" if _OF_THE_INSTALLATION.search(text) else text
    return ""


def _ranks(one: Job) -> None:
    """The rank generators that initialize_model_parallel divides the world with, dense and expert."""
    from megatron.core.parallel_state import RankGenerator

    layout = one.layout
    dense = layout.tp * layout.pp * layout.cp
    if layout.ranks % dense:
        raise RuntimeError(f"world {layout.ranks} is not divisible by {dense}")
    expert = layout.pp * layout.ep * layout.etp
    if layout.ranks % expert:
        raise RuntimeError(f"world {layout.ranks} is not divisible by expert {expert}")
    order = "tp-cp-ep-dp-pp"
    RankGenerator(tp=layout.tp, ep=1, dp=layout.ranks // dense, pp=layout.pp, cp=layout.cp, order=order)
    RankGenerator(tp=layout.etp, ep=layout.ep, dp=layout.ranks // expert, pp=layout.pp, cp=1, order=order)


def _transformer(one: Job) -> None:
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if one.model.mla else TransformerConfig
    words = dict([*_sizes(one), *_formats(one), *_recompute(one)])
    kind(bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, **words)


def _layers(one: Job) -> None:
    """How many layers each stage and chunk builds."""
    import torch
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(bf16=True, pipeline_dtype=torch.bfloat16, **dict(_sizes(one)))
    for stage in range(one.layout.pp):
        get_num_layers_to_build(config, vp_stage=0 if one.layout.vp > 1 else None, pp_rank=stage)


def _sizes(one: Job) -> Iterator[tuple[str, Any]]:
    model, layout = one.model, one.layout
    yield from {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "kv_channels": head_dim(model),
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vp if layout.vp > 1 else None,
        "context_parallel_size": layout.cp,
        "cp_comm_type": one.techniques.cp_comm.value if layout.cp > 1 else None,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.sequence_parallel,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "add_bias_linear": model.activation.value == "gelu" and not model.moe,
    }.items()
    if model.moe:
        yield "num_moe_experts", model.moe.num_experts
        yield "moe_router_topk", model.moe.top_k
        yield "moe_ffn_hidden_size", model.moe.expert_ffn_hidden_size
        yield "moe_shared_expert_intermediate_size", model.moe.shared_ffn_hidden_size or None
        yield "moe_grouped_gemm", True
        yield "moe_token_dispatcher_type", "alltoall"


_FP8 = {
    LowPrecision.fp8_delayed: "delayed",
    LowPrecision.fp8_current: "tensorwise",
    LowPrecision.fp8_blockwise: "blockwise",
    LowPrecision.mxfp8: "mxfp8",
}


def _formats(one: Job) -> Iterator[tuple[str, Any]]:
    low, gathered = one.precision.low_precision, one.precision.low_precision_params
    if low in _FP8:
        yield from {"fp8": "hybrid", "fp8_recipe": _FP8[low], "fp8_param": gathered}.items()
    elif low is LowPrecision.nvfp4:
        yield from {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param": gathered}.items()
    else:
        yield "fp8_param", gathered


def _recompute(one: Job) -> Iterator[tuple[str, Any]]:
    techniques = one.techniques
    if techniques.recompute is Recompute.full:
        yield "recompute_granularity", "full"
        yield "recompute_method", techniques.recompute_method.value
        yield "recompute_num_layers", techniques.recompute_num_layers
    elif techniques.recompute is Recompute.selective:
        yield "recompute_granularity", "selective"
        yield "recompute_modules", list(techniques.recompute_modules)
    if techniques.activation_offload_layers:
        yield "cpu_offloading", True
        yield "cpu_offloading_num_layers", techniques.activation_offload_layers
    if techniques.cuda_graphs:
        yield "cuda_graph_impl", "transformer_engine"
        yield "cuda_graph_scope", ["attn"]


def _optimizer(one: Job) -> None:
    import torch
    from megatron.core.optimizer import OptimizerConfig

    techniques = one.techniques
    aware = techniques.moments is not DType.fp32 or techniques.param_remainders
    moments = torch.bfloat16 if techniques.moments is DType.bf16 else torch.float32
    OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        bf16=True,
        use_distributed_optimizer=one.distributed_optimizer,
        use_precision_aware_optimizer=aware,
        store_param_remainders=techniques.param_remainders,
        exp_avg_dtype=moments,
        exp_avg_sq_dtype=moments,
    )


def _schedule(one: Job) -> None:
    """The interleaved schedule's own table of micro-batches."""
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    layout = one.layout
    ConstantNumMicroBatchesCalculator(
        layout.global_batch, layout.micro_batch, layout.dp, decrease_batch_size_if_needed=False, rank=0
    )


if __name__ == "__main__":
    main()
