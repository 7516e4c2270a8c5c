"""Memory: error of the peak, false refusals, refusals that are due, width of the intervals."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from records import Record, cheapest, hardware, known_to_have_run
from tables import percent, quantile, summary, table

from pipeline.model_math import parameters
from pipeline.planning.job import GIB, Job
from pipeline.planning.memory import estimate_memory, stage_memories
from pipeline.types import Fit, StageMemory

_MEGATRON = {"megatron-bridge", "dgxc", "nemo", "simumax", "golden", "skills", "card", "paper", "own"}
_SMALLER = ("A100-40GB", "H100-80GB", "H200-141GB")
_FAR = 1.25
"""Measured allocation / capacity from which a GPU is far too small."""


def memory_sections(records: Sequence[Record]) -> list[str]:
    """All of the report about memory."""
    measured = distinct([one for one in records if one.memory_gib and not one.reserved and _complete(one)])
    return [
        "## Memory: peak of allocated bytes\n",
        _by_group(measured),
        "Worst cases (the last rank's stage where the source says so):\n",
        _worst(measured),
        _LEFT_OUT,
        _reserved(records),
        "## Memory: the gate\n",
        _gate(records),
        _due(measured),
        _ooms(records),
        _widths(measured),
    ]


def _complete(record: Record) -> bool:
    """Rows that state their layout, without the one golden file that wasn't renewed when its layout changed."""
    stale = record.row["gpu"] == "A100-80GB" and record.row["model"] == "gpt3_15b_8t_release_sm_gb200"
    return record.family in {"simumax", "golden", "skills", "nemo", "own"} and not stale


_LEFT_OUT = """\
Left out: one golden file whose value is another layout's (15 B, A100, the same to the last digit as for TP8), a test
with unfused attention, and hybrid or sparse-attention models that the planner doesn't describe. Golden tests don't
print their number of ranks: it is taken from what stays allocated between steps. The 15 B run on GB200 overlaps
tensor-parallel communication, whose buffers aren't modelled.

The fp8 runs of Llama 3 70B are fine-tuning. Recompute of the MLP freed 3 GiB there, where micro-batches of 4096 tokens
would have freed 12, and twice the pipeline stages or tensor-parallel ranks changed as little: their samples are
shorter than the sequence length, by how much nobody states. They are in the table as printed and in no fit.

Not all of this is out of sample. No coefficient was fitted, but some terms were settled while looking at these runs:
10 bytes a logit of Megatron-Core's fused cross entropy and the quantized copy of attention's output (own runs),
all-to-all as SimuMax's way of context parallelism, and fp32 master weights beside bf16 moments (Moonlight, whose
recipe allows for 16-bit remainders too). GPT 7 B, 15 B and Mixtral were looked at only after the terms stood, except
that dropout masks and experts split over tp were read from their configurations.
"""


def distinct(records: Sequence[Record]) -> list[Record]:
    """One of each configuration: repeats with another batch size have the same peak."""
    found = {}
    for record in records:
        layout = dataclasses.replace(record.job.layout, global_batch=0, num_microbatches=0)
        key = (record.row["model"], record.row["gpu"], record.row["precision"], record.row["recompute"])
        found.setdefault((*key, str(layout), record.job.sequence_length, record.memory_gib), record)
    return list(found.values())


def stage_of(record: Record, job: Job | None = None) -> StageMemory:
    """The stage the source's number is about."""
    found = stage_memories(job or record.job)
    return found[-1] if record.last_rank else max(found, key=lambda stage: stage.allocated_gib)


def memory_error(record: Record) -> float:
    """(predicted - measured) / measured of the allocated peak."""
    assert record.memory_gib is not None
    return stage_of(record).allocated_gib / record.memory_gib - 1


def _groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        precision = "fp8 and fp4" if record.job.precision.low_precision else "bf16"
        groups.setdefault(f"{record.kind} {precision}", []).append(record)
        groups.setdefault(f"{record.kind} {precision}, {record.family}", []).append(record)
    return dict(sorted(groups.items()))


def _by_group(measured: Sequence[Record]) -> str:
    rows = []
    for name, members in _groups(measured).items():
        theirs = [megatron_formula_gib(one.job) / (one.memory_gib or 1) - 1 for one in members]
        rows.append((name, len(members), *summary([memory_error(one) for one in members]), summary(theirs)[0]))
    head = ("group", "n", "median", "P95", "worst", "signed median", "Megatron-LM's formula, median")
    return table(head, rows) + (
        "\nMegatron-LM's formula is its report_theoretical_memory: 18 or 6 + 12/d bytes a parameter and\n"
        "s*b*h*(18 + 4 f/h) a layer, which assumes GELU, sequence parallelism and no experts.\n"
    )


def _worst(measured: Sequence[Record]) -> str:
    ordered = sorted(measured, key=lambda one: -abs(memory_error(one)))[:8]
    rows = [
        (
            *(one.row[key] for key in ("model", "gpu", "precision")),
            layout_text(one),
            one.memory_gib,
            f"{stage_of(one).allocated_gib:.1f}",
            percent(memory_error(one), signed=True),
        )
        for one in ordered
    ]
    return table(("model", "GPU", "precision", "layout", "measured GiB", "predicted", "error"), rows)


def layout_text(record: Record) -> str:
    """A layout in short."""
    layout = record.job.layout
    sizes = {"tp": layout.tp, "pp": layout.pp, "vp": layout.vp, "cp": layout.cp, "ep": layout.ep, "dp": layout.dp}
    text = " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "one GPU"
    return f"{text} mbs{layout.micro_batch} s{record.job.sequence_length}"


def _reserved(records: Sequence[Record]) -> str:
    found = [one for one in records if one.memory_gib and one.reserved]
    if not found:
        return ""
    errors = [stage_of(one).allocated_gib / (one.memory_gib or 1) - 1 for one in found]
    return (
        f"Not counted above: {len(found)} torchtitan rows (another framework, which reports what its allocator "
        f"reserved; checkpointing by operator has no counterpart here): median {summary(errors)[0]}, "
        f"P95 {summary(errors)[1]}.\n"
    )


def megatron_formula_gib(job: Job) -> float:
    """Megatron-LM's theoretical estimate of weights, optimizer and activations of the most loaded rank.

    Source: megatron/training/theoretical_memory_usage.py, selective recompute and sequence parallelism assumed.
    """
    model, layout = job.model, job.layout
    head = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    ends = model.vocab_size * model.hidden_size + (head if layout.pp == 1 else 0)
    layers = parameters(model) - model.vocab_size * model.hidden_size - head
    per_parameter = 6 + 12 / layout.dp if job.distributed_optimizer else 18
    weights = per_parameter * (layers / layout.pp + ends) / layout.tp
    tokens = job.tokens
    kept = tokens * model.hidden_size * (18 + 4 * model.ffn_hidden_size / model.hidden_size) * model.num_layers
    if layout.vp > 1:
        kept *= 1 + (layout.pp - 1) / (layout.pp * layout.vp)
    elif layout.pp > 1:
        kept *= min(1, layout.num_microbatches / layout.pp)
    else:
        kept += tokens * model.hidden_size * 4 * (1 + model.vocab_size / model.hidden_size)
    return (weights + kept / layout.tp) / GIB


# --------------------------------------------------------------------------- the gate


def _gate(records: Sequence[Record]) -> str:
    ran = [one for one in records if known_to_have_run(one)]
    rows = []
    for name, chosen in (
        ("Megatron runs", [one for one in ran if one.family in _MEGATRON and "ZeRO-3" not in one.row["notes"]]),
        (
            "torch FSDP and DeepSpeed runs",
            [one for one in ran if one.family not in _MEGATRON or "ZeRO-3" in one.row["notes"]],
        ),
    ):
        stated = Counter(estimate_memory(one.job).fit for one in chosen)
        open_ones = [one for one in chosen if estimate_memory(cheapest(one)).fit is Fit.refused]
        rows.append((name, len(chosen), *(stated[fit] for fit in Fit), len(open_ones)))
    head = (
        "runs known to have run",
        "n",
        "FITS",
        "AT_RISK",
        "REFUSED as stated",
        "REFUSED, unstated settings at their least",
    )
    return table(head, rows) + "\nREFUSED as stated:\n\n" + _refused(ran)


def _refused(ran: Sequence[Record]) -> str:
    found = {}
    for one in ran:
        estimate = estimate_memory(one.job)
        if estimate.fit is Fit.refused:
            lower = max(stage.lower_gib for stage in estimate.stages)
            key = (one.row["model"], one.row["gpu"], one.row["precision"], layout_text(one))
            found[key] = (f"{lower:.0f} / {estimate.capacity_gib:.0f}", ", ".join(sorted(one.unresolved)) or "nothing")
    rows = [(*key, *rest) for key, rest in found.items()]
    return table(
        ("model", "GPU", "precision", "layout", "lower bound / capacity GiB", "not stated by the source"), rows
    )


def _due(measured: Sequence[Record]) -> str:
    """Measured peaks put on smaller GPUs: what is far over capacity has to be refused."""
    refused = total = 0
    for one in measured:
        for name in _SMALLER:
            smaller, _ = hardware(name)
            if (one.memory_gib or 0) >= _FAR * (smaller.memory_gib or 0) and not one.last_rank:
                total += 1
                refused += estimate_memory(dataclasses.replace(one.job, gpu=smaller)).fit is Fit.refused
    return (
        f"Refusals that are due: {refused} of {total} cases whose measured allocation is at least {_FAR} times what a "
        f"smaller GPU has are REFUSED there ({percent(refused / max(1, total))}).\n"
    )


def _ooms(records: Sequence[Record]) -> str:
    """Rows whose notes say that the run didn't get through as it stood."""
    failed = [one for one in records if re.search("OOM (from|on)", one.row["notes"])]
    fits = Counter(estimate_memory(one.job).fit for one in failed)
    words = ", ".join(f"{fits[fit]} {fit.value}" for fit in Fit)
    return f"Known out-of-memory runs that state their layout ({len(failed)}): {words}.\n"


def _widths(measured: Sequence[Record]) -> str:
    stages = [stage_of(one) for one in measured]
    widths = [(stage.upper_gib - stage.lower_gib) / stage.point_gib for stage in stages]
    inside = sum(
        stage.lower_gib <= (one.memory_gib or 0) * 1.05 + 2.5 <= stage.upper_gib
        for one, stage in zip(measured, stages, strict=True)
    )
    return (
        f"Width of the interval (upper - lower) / expected: median {percent(quantile(widths, 0.5))}, "
        f"P95 {percent(quantile(widths, 0.95))}. It encloses the measured allocation, plus 5 % reserved and 2.5 GiB "
        f"outside torch, in {inside} of {len(measured)} cases.\n"
    )
