"""Jobs for tests of the planner, from few words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.conf_groups import shipped_conf_dir
from pipeline.planning.job import Job
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
    Techniques,
)

MEASURED = Path(__file__).with_name("measured_memory.yaml")
_LOSS = {"simumax": CrossEntropy.te, "bridge": CrossEntropy.te, "golden": CrossEntropy.unfused}


@cache
def gpu(name: str) -> GpuSpec:
    """A GPU of conf/hardware/gpu."""
    document = yaml.safe_load((shipped_conf_dir() / "hardware" / "gpu" / f"{name}.yaml").read_text(encoding="utf-8"))
    document.pop("sources")
    return GpuSpec(**document)


def shape(name: str, words: dict[str, Any]) -> ModelSpec:
    """A model from its numbers."""
    words = dict(words)
    for key, kind in (("moe", MoeSpec), ("mla", MlaSpec), ("activation", Activation), ("normalization", Normalization)):
        if key in words:
            words[key] = kind(**words[key]) if isinstance(words[key], dict) else kind(words[key])
    return ModelSpec(name=name, max_sequence_length=1 << 20, **words)


def job(model: ModelSpec, *, gpu_name: str = "h100_sxm5_80gb", seq: int = 4096, **words: Any) -> Job:
    """A job of a model: tp, pp, cp, dp, vp, ep, etp, micro, batch; low, gathered; any field of Techniques."""
    size = {key: int(words.pop(key, 1)) for key in ("tp", "pp", "cp", "dp", "vp", "ep", "etp", "micro")}
    ranks = size["tp"] * size["pp"] * size["cp"] * size["dp"]
    chunks = tuple(words.pop("chunk_layers", ()))
    micro, batch = size.pop("micro"), int(words.pop("batch", size["dp"] * size["pp"]))
    low, gathered, split = words.pop("low", None), words.pop("gathered", False), words.pop("split", True)
    layout = Layout(
        nodes=max(1, ranks // 8),
        ranks_per_node=min(8, ranks),
        sequence_parallel=split and size["tp"] > 1,
        micro_batch=micro,
        global_batch=batch,
        num_microbatches=max(1, batch // (micro * size["dp"])),
        chunk_layers=chunks,
        **size,
    )
    return Job(
        model=model,
        layout=layout,
        precision=Precision(
            name="test",
            dtype=DType.bf16,
            low_precision=LowPrecision(low) if low else None,
            low_precision_params=gathered,
        ),
        techniques=Techniques(**words),
        sequence_length=seq,
        gpu=gpu(gpu_name),
        node=NodeSpec(nvlink_domain_gpus=8, nics_per_node=[8], nic_gbit_per_s=400.0),
    )


def measured_cases() -> list[tuple[str, Job, float]]:
    """(name, job, GiB allocated) of every case in measured_memory.yaml."""
    document = yaml.safe_load(MEASURED.read_text(encoding="utf-8"))
    return [_measured(index, case, document["shapes"]) for index, case in enumerate(document["cases"])]


def _measured(index: int, case: dict[str, Any], shapes: dict[str, Any]) -> tuple[str, Job, float]:
    words = dict(case)
    source, name, measured = words.pop("from"), words.pop("shape"), words.pop("gib")
    recompute = words.pop("recompute", None)
    if recompute == "full":
        words["recompute"] = Recompute.full
    elif recompute:
        words |= {"recompute": Recompute.selective, "recompute_modules": recompute}
    if source == "bridge":
        words |= {"grads": DType.bf16, "moments": DType.bf16}
    words["cross_entropy"] = _LOSS.get(source, CrossEntropy.native)
    words["cp_comm"] = CpComm.a2a
    found = job(shape(name, shapes[name]), gpu_name=words.pop("gpu"), **words)
    return f"{index}-{source}-{name}", found, measured
