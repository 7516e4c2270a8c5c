"""Each rule refuses what it is there for, says both sides and a way out, and lets ordinary jobs pass."""

from __future__ import annotations

from typing import Any

import pytest
from planning_jobs import job, shape

from pipeline.planning.advice import warnings
from pipeline.planning.rules import check_job, is_legal
from pipeline.types import CpComm, CrossEntropy, DType, Recompute, RecomputeMethod, Sharding

DENSE = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "vocab_size": 128256,
}
LLAMA = shape("llama", DENSE)
GPT = shape("gpt", DENSE | {"activation": "gelu", "num_query_groups": 32})
MOE = shape("moe", DENSE | {"moe": {"num_experts": 64, "top_k": 4, "expert_ffn_hidden_size": 1408}})
ODD = shape("odd", DENSE | {"hidden_size": 4104, "head_dim": 128})
A100, H100, B200 = "a100_sxm4_80gb", "h100_sxm5_80gb", "b200_sxm_180gb"
SOME = Recompute.selective

# (rule, model, words of the job, part of the message)
REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("vp", LLAMA, {"vp": 2}, "layout.vp: got 2 with pp 1"),
    ("vp_layers", LLAMA, {"pp": 4, "vp": 3, "batch": 8}, "32 layers can't be split over pp 4 x vp 3"),
    ("vp_micro_batches", LLAMA, {"pp": 4, "vp": 2, "batch": 6}, "in groups of pp 4, got 6"),
    ("chunk_layers", LLAMA, {"pp": 4, "chunk_layers": (8, 8, 8)}, "pp 4 x vp 1 needs 4 of 32; e.g. layout.chunk"),
    ("ep", LLAMA, {"dp": 2, "ep": 2}, "has no experts"),
    ("experts", MOE, {"dp": 3, "ep": 3}, "64 experts can't be split over ep 3"),
    ("etp", MOE, {"dp": 3, "etp": 3}, "1408 can't be split over etp 3"),
    ("expert_world", MOE, {"dp": 4, "ep": 8}, "= 8 must divide the 4 ranks"),
    ("moe_sequence_parallel", MOE, {"tp": 2, "split": False}, "experts with tp 2 need it"),
    ("sequence_split", LLAMA, {"tp": 4, "cp": 2, "seq": 4104}, "2 x cp 2 x tp 4 = 16"),
    ("cp_heads", LLAMA, {"tp": 4, "cp": 4, "cp_comm": CpComm.a2a}, "8 groups over tp 4 x cp 4"),
    ("tp_domain", LLAMA, {"tp": 16}, "don't fit in one NVLink domain of 8"),
    ("low_precision_params", LLAMA, {"gathered": True}, "needs precision.low_precision"),
    ("low_precision_gpu", LLAMA, {"low": "fp8_current", "gpu_name": A100}, "needs compute capability 8.9"),
    ("low_precision_gpu", LLAMA, {"low": "mxfp8", "gpu_name": H100}, "formats it has: fp8_delayed"),
    ("low_precision_gpu", LLAMA, {"low": "nvfp4", "gpu_name": H100}, "H100-SXM5-80GB has 9"),
    ("low_precision_size", ODD, {"low": "fp8_current"}, "hidden_size is 4104"),
    ("low_precision_size", LLAMA, {"low": "mxfp8", "gpu_name": B200, "seq": 4112}, "multiples of 32"),
    ("param_remainders", LLAMA, {"low": "fp8_current", "gathered": True, "param_remainders": True}, "only bf16"),
    ("grads", LLAMA, {"grads": DType.fp16}, "got fp16 with bf16"),
    ("offload", LLAMA, {"optimizer_offload": 1.5}, "allowed: 0 to 1"),
    ("recompute_modules", LLAMA, {"recompute": SOME}, "selective needs some of"),
    ("recompute_modules", LLAMA, {"recompute": SOME, "recompute_modules": ["mpl"]}, "no mpl; there are"),
    ("recompute_modules", LLAMA, {"recompute": SOME, "recompute_modules": ["moe"]}, "has nothing that moe names"),
    ("recompute_modules", MOE, {"recompute": SOME, "recompute_modules": ["shared_experts"]}, "has nothing"),
    ("recompute_modules", LLAMA, {"recompute": SOME, "recompute_modules": ["mla_up_proj"]}, "has nothing"),
    ("recompute_modules", LLAMA, {"recompute_modules": ["mlp"]}, "while techniques.recompute is none"),
    ("recompute_modules", LLAMA, {"recompute": Recompute.full, "recompute_modules": ["mlp"]}, "takes none"),
    (
        "recompute_delayed",
        LLAMA,
        {"recompute": SOME, "recompute_modules": ["layernorm"], "low": "fp8_delayed"},
        "doesn't go with fp8_delayed",
    ),
    ("recompute_bias", GPT, {"recompute": SOME, "recompute_modules": ["mlp"]}, "hangs in models with biases"),
    ("recompute_num_layers", LLAMA, {"recompute": Recompute.full, "recompute_num_layers": 33}, "1 to the 32"),
    ("recompute_graphs", LLAMA, {"recompute": Recompute.full, "cuda_graphs": True}, "doesn't go with full"),
    ("activation_offload", LLAMA, {"activation_offload_layers": 32}, "allowed: 0 to 31"),
    ("activation_offload", LLAMA, {"pp": 2, "activation_offload_layers": 4}, "doesn't go with pp 2"),
    ("fsdp_pp", LLAMA, {"pp": 2, "sharding": Sharding.optim_grads}, "give layout.pp=1"),
]
LEGAL: list[tuple[Any, dict[str, Any]]] = [
    (LLAMA, {}),
    (LLAMA, {"tp": 8, "pp": 4, "cp": 2, "dp": 2, "vp": 4, "batch": 32}),
    (LLAMA, {"dp": 8, "sharding": Sharding.optim_grads_params, "low": "fp8_current", "gathered": True}),
    (LLAMA, {"low": "nvfp4", "gpu_name": B200}),
    (LLAMA, {"pp": 3, "batch": 6, "chunk_layers": (11, 11, 10)}),
    (LLAMA, {"recompute": Recompute.full, "recompute_method": RecomputeMethod.block, "recompute_num_layers": 5}),
    (MOE, {"tp": 2, "dp": 8, "ep": 16, "batch": 8, "recompute": SOME, "recompute_modules": ["moe_act", "layernorm"]}),
    (MOE, {"moments": DType.bf16, "param_remainders": True, "grads": DType.bf16}),
]


@pytest.mark.parametrize(("rule", "model", "words", "part"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_with_both_sides(rule: str, model: Any, words: dict[str, Any], part: str) -> None:
    found = {problem.rule: problem.message for problem in check_job(job(model, **words))}
    assert part in found[rule]
    assert not is_legal(job(model, **words))


@pytest.mark.parametrize(("model", "words"), LEGAL)
def test_ordinary_jobs_pass(model: Any, words: dict[str, Any]) -> None:
    assert check_job(job(model, **words)) == []
    assert is_legal(job(model, **words))


def test_optimizer_rules_need_the_distributed_one() -> None:
    from dataclasses import replace

    for words in ({"moments": DType.bf16}, {"sharding": Sharding.optim_grads}):
        alone = replace(job(LLAMA, **words), distributed_optimizer=False)
        assert {problem.rule for problem in check_job(alone)} & {"precision_aware", "fsdp_optimizer"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({"recompute": SOME, "recompute_modules": ["core_attn"]}, "saves nothing with flash attention"),
        ({"pp": 8, "batch": 4}, "stages idle 64% of the time"),
        ({"tp": 2, "split": False}, "without sequence parallelism"),
        ({"cross_entropy": CrossEntropy.te}, "0.19 refuses"),
        ({"low": "fp8_current", "gathered": True}, "change numerics"),
        ({"optimizer_offload": 0.5}, "1.9 to 4.2 times"),
    ],
)
def test_what_is_legal_but_not_what_it_seems_is_said(words: dict[str, Any], part: str) -> None:
    assert any(part in warning for warning in warnings(job(LLAMA, **words)))
    assert not warnings(job(LLAMA))
