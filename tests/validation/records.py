"""Measured public runs as jobs: one row of training_runs.csv in, what the planner takes out.

A table row rarely states all settings. What each source is known to use stands in `_SETTINGS`; what stays unknown is
listed in `Record.unresolved`.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config import load
from pipeline.planning.job import Job
from pipeline.planning.memory import stage_memories
from pipeline.types import (
    Activation,
    CpComm,
    CrossEntropy,
    DType,
    GpuSpec,
    Layout,
    LowPrecision,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    NodeSpec,
    Normalization,
    Precision,
    Recompute,
    RecomputeMethod,
    Sharding,
    Techniques,
)

Row = dict[str, str]

PROFILES = {
    "A100-80GB": "dgx_a100",
    "A100-40GB": "dgx_a100",
    "H100-80GB": "dgx_h100",
    "H100-96GB-HBM2e": "dgx_h100",
    "H200-141GB": "dgx_h200",
    "B200": "dgx_b200",
    "B300": "dgx_b300",
    "GB200": "gb200_nvl72",
    "GB300": "gb300_nvl72",
}
# Variants that have no profile: (GiB torch sees, TB/s).
_VARIANTS = {"A100-40GB": (39.4, 1.555), "H100-96GB-HBM2e": (95.0, 2.4)}
_PRECISIONS: dict[str, LowPrecision | None] = {
    "bf16": None,
    "fp16": None,
    "fp8": LowPrecision.fp8_current,
    "fp8-cs": LowPrecision.fp8_current,
    "fp8-ds": LowPrecision.fp8_delayed,
    "fp8-rowwise": LowPrecision.fp8_current,
    "fp8-tensorwise": LowPrecision.fp8_current,
    "fp8-mx": LowPrecision.mxfp8,
    "fp8_mx": LowPrecision.mxfp8,
    "mxfp8": LowPrecision.mxfp8,
    "nvfp4": LowPrecision.nvfp4,
}
# Rows whose model is one of ours.
_SHIPPED = {
    "deepseek-v3": "deepseek_v3",
    "gpt-oss-120b": "gpt_oss_120b",
    "gpt-oss-20b": "gpt_oss_20b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "nemotron4-15b": "nemotron4_15b",
    "nemotron4-340b": "nemotron4_340b",
    "qwen3-8b": "qwen3_8b",
    "Nemotron-340B": "nemotron4_340b",
    "llama3_2_1b": "llama3_2_1b",
}
# Hybrids, models whose attention isn't ours, a test with unfused attention (its scores are kept whole), and a golden
# file that was not renewed when its layout changed.
_NOT_OURS = r"(?i)nemotron.?3|glm5|v4|gpt3_mcore_te|qwen3\.\d|nanochat"
_LATENT = MlaSpec(q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128)


@dataclass(frozen=True, slots=True)
class Record:
    """One measured configuration."""

    index: int
    row: Row
    job: Job
    family: str
    """Who ran it with what: megatron-bridge, dgxc, simumax, golden, nemo, torchtitan, llm-foundry, paper."""
    unresolved: frozenset[str]
    memory_gib: float | None
    reserved: bool
    """The memory is what the allocator reserved, not what was allocated."""
    last_rank: bool
    """The memory is of the last pipeline stage only."""
    tokens_per_s_per_gpu: float | None

    @property
    def kind(self) -> str:
        """Dense or moe."""
        return "moe" if self.job.model.moe else "dense"

    @property
    def format(self) -> str:
        """Class of number format: bf16, fp8, mxfp8, nvfp4."""
        low = self.job.precision.low_precision
        return "bf16" if low is None else ("fp8" if low.value.startswith("fp8") else low.value)


def read_records(path: Path) -> list[Record]:
    """All rows that name enough of a configuration to be planned."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [record for index, row in enumerate(rows) if (record := _record(index, row)) is not None]


def known_to_have_run(record: Record) -> bool:
    """Whether a row stands for a run that finished, as printed."""
    return not re.search(r"OOM on|SUSPECT|possible copy error", record.row["notes"])


# --------------------------------------------------------------------------- one row


def _record(index: int, row: Row) -> Record | None:
    model = _model(row)
    if re.search(_NOT_OURS, row["model"]):
        return None
    if model is None or "LoRA" in row["notes"] or not row["seq"] or row["gpu"] not in PROFILES:
        return None
    family = _family(row)
    if model.moe and not (row["ep"] and row["tp"]):
        return None
    layout = _layout(row, model)
    gpu, node = hardware(row["gpu"], foundry=family == "llm-foundry")
    techniques, unresolved = _techniques(row, family)
    job = Job(
        model=model,
        layout=layout,
        precision=_precision(row, family),
        techniques=techniques,
        sequence_length=int(row["seq"]),
        gpu=gpu,
        node=node,
    )
    job = _with_sharing(job, row)
    return Record(
        index=index,
        row=row,
        job=job,
        family=family,
        unresolved=unresolved,
        memory_gib=float(row["peak_mem_gb"]) if row["peak_mem_gb"] else None,
        reserved=family == "torchtitan",
        last_rank=family == "golden",
        tokens_per_s_per_gpu=float(row["tokens_per_s_per_gpu"]) if row["tokens_per_s_per_gpu"] else None,
    )


@cache
def hardware(name: str, *, foundry: bool = False) -> tuple[GpuSpec, NodeSpec]:
    """The GPU of a row and the node it is taken to stand in."""
    profile = load([f"hardware={PROFILES[name]}"]).experiment.hardware
    spec, node = profile.gpu_spec, profile.node_spec
    assert spec is not None
    if name in _VARIANTS:
        memory, bandwidth = _VARIANTS[name]
        spec = dataclasses.replace(spec, name=name, memory_gib=memory, hbm_tb_per_s=bandwidth)
    if foundry:  # 1600 Gbit/s a node on A100, 3200 on H100
        node = dataclasses.replace(node, nic_gbit_per_s=200.0 if name.startswith("A100") else 400.0)
    return spec, node


@cache
def _shipped(name: str) -> ModelSpec:
    return load([f"model={name}"]).experiment.model


_FAMILIES = (
    ("performance-summary", "megatron-bridge"),
    ("model_verification_cards", "card"),
    ("Megatron-Bridge skills", "skills"),
    ("dgxc-benchmarking", "dgxc"),
    ("SimuMax", "simumax"),
    ("functional_tests", "golden"),
    ("llm-foundry", "llm-foundry"),
    ("torchtitan", "torchtitan"),
    ("NeMo docs", "nemo"),
    ("vuiseng9", "nemo"),
    ("nanochat", "nanochat"),
    ("himori", "own"),
)


def _family(row: Row) -> str:
    return next((family for word, family in _FAMILIES if word in row["source"]), "paper")


def _int(row: Row, key: str, default: int) -> int:
    return int(row[key]) if row[key] else default


def _model(row: Row) -> ModelSpec | None:
    name = row["model"]
    if "w/o MTP" in row["notes"] or name in _SHIPPED:
        return _with_capacity(_shipped(_SHIPPED[name]), row)
    if not (row["layers"] and row["hidden"] and row["ffn"] and row["heads"]):
        return None
    shape = ModelSpec(
        name=name,
        num_layers=int(row["layers"]),
        hidden_size=int(row["hidden"]),
        ffn_hidden_size=int(row["ffn"]),
        num_attention_heads=int(row["heads"]),
        num_query_groups=_int(row, "kv_heads", int(row["heads"])),
        vocab_size=_int(row, "vocab", 51200),
        max_sequence_length=_int(row, "seq", 8192),
    )
    return _as_known(shape)


def _with_capacity(model: ModelSpec, row: Row) -> ModelSpec:
    if model.moe and "tokendrop" in row["notes"]:
        return dataclasses.replace(model, moe=dataclasses.replace(model.moe, capacity_factor=1.0))
    return model


_DEEPSEEK_PROXY = MoeSpec(
    num_experts=256,
    top_k=8,
    expert_ffn_hidden_size=2048,
    shared_ffn_hidden_size=2048,
    dense_layers=1,
    capacity_factor=1.0,
)
_MOONLIGHT = MoeSpec(num_experts=64, top_k=6, expert_ffn_hidden_size=1408, shared_ffn_hidden_size=2816, dense_layers=1)
_KIMI = MoeSpec(num_experts=384, top_k=8, expert_ffn_hidden_size=2048, shared_ffn_hidden_size=2048, dense_layers=1)
_GROK = MoeSpec(num_experts=8, top_k=2, expert_ffn_hidden_size=32768)
_GPT: dict[str, Any] = {"activation": Activation.gelu, "normalization": Normalization.layernorm}
# What a model's name says beyond the columns: the first pattern that matches.
_KNOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mpt", _GPT | {"tied_embeddings": True, "linear_bias": False}),
    ("gpt3_7b", _GPT | {"hidden_dropout": 0.1}),  # arguments.py's default
    (
        "gpt3_15b",
        _GPT | {"activation": Activation.squared_relu, "linear_bias": False, "vocab_size": 256000},
    ),
    ("(?i)gpt-?[0-9]", _GPT | {"tied_embeddings": True}),
    ("deepseek-v3-4layer", {"moe": _DEEPSEEK_PROXY, "mla": _LATENT}),
    ("moonlight", {"moe": _MOONLIGHT, "mla": dataclasses.replace(_LATENT, q_lora_rank=None)}),
    ("kimi-k2", {"moe": _KIMI, "mla": _LATENT, "ffn_hidden_size": 18432}),
    ("grok1", {"moe": _GROK, "head_dim": 128}),
)


def _as_known(shape: ModelSpec) -> ModelSpec:
    """The shape with what its name says beyond the columns."""
    if shape.name.startswith("mixtral"):
        moe = MoeSpec(num_experts=8, top_k=2, expert_ffn_hidden_size=shape.ffn_hidden_size)
        return dataclasses.replace(shape, moe=moe, vocab_size=256000 if "alltoall" in shape.name else 32000)
    known = next((words for pattern, words in _KNOWN if re.match(pattern, shape.name)), {})
    return dataclasses.replace(shape, **known)


def _layout(row: Row, model: ModelSpec) -> Layout:
    tp, pp, cp, ep = (_int(row, key, 1) for key in ("tp", "pp", "cp", "ep"))
    shards = re.search(r":(\d+)", row["dp_or_fsdp"])
    dp = int(shards[1]) if shards else (int(row["dp_or_fsdp"]) if row["dp_or_fsdp"].isdigit() else 0)
    gpus = _int(row, "num_gpus", 0) or tp * pp * cp * max(1, dp)
    dp = max(1, gpus // (tp * pp * cp))
    micro = _int(row, "mbs", 1)
    batch = _int(row, "gbs", 8 * pp * micro * dp)  # not stated: enough to fill the pipeline
    per_node = 4 if row["gpu"].startswith("GB") else 8
    return Layout(
        nodes=max(1, gpus // per_node),
        ranks_per_node=min(gpus, per_node),
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        sequence_parallel=tp > 1 and "no sequence parallel" not in row["notes"] and "gpt3_7b" not in row["model"],
        micro_batch=micro,
        global_batch=batch,
        num_microbatches=max(1, batch // (micro * dp)),
        vp=_chunks(row, model, pp),
        ep=ep,
        etp=tp if "mixtral" in row["model"] and "tp1pp4" not in row["model"] else 1,
    )


def _chunks(row: Row, model: ModelSpec, pp: int) -> int:
    if row["vp"]:
        return int(row["vp"]) if pp > 1 else 1
    per_chunk = re.search(r"vp layers/stage=(\d+)", row["notes"])
    if per_chunk:
        return max(1, model.num_layers // (pp * int(per_chunk[1])))
    return 4 if row["model"].startswith("gpt3_mcore_te") else 1


def _precision(row: Row, family: str) -> Precision:
    low = _PRECISIONS[row["precision"]]
    gathered = family in _NVIDIA_RECIPES and low is not LowPrecision.nvfp4
    dtype = DType.fp16 if row["precision"] == "fp16" else DType.bf16
    return Precision(
        name=row["precision"], dtype=dtype, low_precision=low, low_precision_params=low is not None and gathered
    )


def _techniques(row: Row, family: str) -> tuple[Techniques, frozenset[str]]:
    techniques = Techniques(cross_entropy=_loss(row, family))
    unresolved = set() if row["recompute"] else {"recompute"}
    _set_recompute(techniques, row["recompute"])
    _set_formats(techniques, row, family)
    if family in _NVIDIA_RECIPES:
        unresolved.add("param_remainders")
    if re.search("fsdp|zero", row["dp_or_fsdp"]):
        techniques.sharding = Sharding.optim_grads if "zero2" in row["dp_or_fsdp"] else Sharding.optim_grads_params
    offload = re.search(r"offloads activations of (\d+)\(bf16\)/(\d+)\(fp8\)", row["notes"])
    if offload:
        techniques.activation_offload_layers = int(offload[2] if "fp8" in row["precision"] else offload[1])
    elif techniques.sharding is not Sharding.none and family in _NVIDIA_RECIPES:
        unresolved.add("activation_offload_layers")
    return techniques, frozenset(unresolved)


_NVIDIA_RECIPES = {"megatron-bridge", "dgxc", "nemo", "card", "skills"}


def _set_formats(techniques: Techniques, row: Row, family: str) -> None:
    """Gradients and optimizer state as each source's recipes have them."""
    if family in _NVIDIA_RECIPES:
        techniques.grads = DType.bf16
        if row["model"] in {"moonlight-16b-a3b", "deepseek-v3", "kimi-k2"}:
            techniques.moments = DType.bf16
    if family in {"torchtitan", "llm-foundry"}:
        techniques.param_remainders = True  # torch's FSDP keeps no second copy of the parameters: the same bytes
        techniques.grads = DType.bf16 if "PURE" in row["notes"] else DType.fp32
    if family == "simumax":
        techniques.cp_comm = CpComm.a2a


def cheapest(record: Record) -> Job:
    """The job with every setting that its source doesn't state at its least memory."""
    least: dict[str, Any] = {}
    if "recompute" in record.unresolved:
        least |= {"recompute": Recompute.full, "recompute_method": RecomputeMethod.uniform}
    if "param_remainders" in record.unresolved:
        least |= {"param_remainders": True, "moments": DType.bf16}
    if "activation_offload_layers" in record.unresolved:
        least |= {"activation_offload_layers": record.job.model.num_layers}
    return dataclasses.replace(record.job, techniques=dataclasses.replace(record.job.techniques, **least))


def _loss(row: Row, family: str) -> CrossEntropy:
    if family == "own":
        return CrossEntropy.native
    if family in {"golden", "torchtitan", "paper"}:
        if row["model"].startswith("gpt3_mcore_te"):
            return CrossEntropy.native
        return CrossEntropy.te if row["model"] == "gpt3_15b_8t_release_sm_gb200" else CrossEntropy.unfused
    return CrossEntropy.te


def _set_recompute(techniques: Techniques, text: str) -> None:
    if text.startswith("full"):
        techniques.recompute = Recompute.full
        block = re.search(r"block,(\d+)", text)
        if block:
            techniques.recompute_method = RecomputeMethod.block
            techniques.recompute_num_layers = int(block[1])
    elif text.startswith("selective("):
        techniques.recompute = Recompute.selective
        inside = text[len("selective(") :].split(")")[0]
        # torchtitan's per-operator checkpointing keeps matmul results of every second layer: nearest to our modules
        techniques.recompute_modules = ["layernorm", "mlp"] if inside == "op SAC" else inside.split(",")


def _with_sharing(job: Job, row: Row) -> Job:
    """Golden tests don't print their number of ranks: taken from what stays allocated between steps."""
    steady = re.search(r"steady alloc ([\d.]+)", row["notes"])
    if row["num_gpus"] or not steady:
        return job
    return min(_sharings(job), key=lambda one: abs(_steady_gib(one) - float(steady[1])))


def _sharings(job: Job) -> Iterator[Job]:
    layout = job.layout
    for dp in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128):
        gpus = layout.tp * layout.pp * layout.cp * dp
        if gpus >= layout.ep * layout.pp:
            yield dataclasses.replace(
                job, layout=dataclasses.replace(layout, dp=dp, nodes=max(1, gpus // layout.ranks_per_node))
            )


def _steady_gib(job: Job) -> float:
    last = stage_memories(job)[-1]
    return last.weights_gib + last.gradients_gib + last.optimizer_gib
