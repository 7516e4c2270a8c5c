"""Measured step times as observations for the calibration."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from records import Record

from pipeline.planning.fitting import Observation, log_ratio
from pipeline.planning.steptime import rate_class, step_time
from pipeline.planning.throughput import SPEED

# Who ran it, as far as speed is concerned. Sources that aren't here don't state enough.
STACKS = {
    "megatron-bridge": "megatron-te",
    "dgxc": "megatron-te",
    "nemo": "megatron-te",
    "own": "megatron-te",
    "simumax": "megatron-untuned",
    "torchtitan": "torch-fsdp",
    "llm-foundry": "torch-fsdp",
    "paper": "megatron-early",
}
# Packed samples attend less than their length says; MegaScale changes the model; context-parallel rows without batch.
_NOT_COMPARABLE = r"SFT|LoRA|MegaScale changes|possible copy"


def timed(records: Sequence[Record]) -> list[Record]:
    """Records whose step time can be modelled."""
    return [
        record
        for record in records
        if record.tokens_per_s_per_gpu
        and record.family in STACKS
        and record.format in record.job.gpu.peak_tflops
        and not re.search(_NOT_COMPARABLE, record.row["notes"])
    ]


def measured_step_s(record: Record) -> float:
    """Seconds of one step, from the tokens that each GPU got through."""
    assert record.tokens_per_s_per_gpu is not None
    layout = record.job.layout
    return layout.global_batch * record.job.sequence_length / (record.tokens_per_s_per_gpu * layout.ranks)


def observations(records: Sequence[Record]) -> list[Observation]:
    """One observation a record; n repeats of one configuration weigh 1/sqrt(n) each."""
    repeats = Counter(_configuration(record) for record in records)
    return [
        Observation(
            kind=record.kind,
            stack=STACKS[record.family],
            gpu=record.job.gpu.name,
            rate=rate_class(record.job),
            model=canonical(record.row["model"]),
            log_ratio=log_ratio(measured_step_s(record), modelled_step_s(record)),
            weight=1 / math.sqrt(repeats[_configuration(record)]),
        )
        for record in records
    ]


def modelled_step_s(record: Record) -> float:
    """Seconds of one step by the model, uncorrected."""
    return step_time(record.job, SPEED, record.job.layout.ranks_per_node).total_s


def canonical(name: str) -> str:
    """The model's name as conf/model spells it."""
    lowered = re.sub(r"[-.]", "_", name.lower())
    return re.sub(r"^llama3_1_", "llama3_", lowered)


def _configuration(record: Record) -> tuple[str, ...]:
    row = record.row
    keys = ("gpu", "num_gpus", "model", "seq", "precision", "tp", "pp", "vp", "cp", "ep", "mbs", "gbs", "layers")
    return (record.family, *(row[key] for key in keys))
