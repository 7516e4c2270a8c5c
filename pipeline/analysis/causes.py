"""Likely causes of a throughput gap between two runs, ranked by what each can have done, with the evidence (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.analysis.adjust import job_of_run, predicted_rate
from pipeline.analysis.bounds import hardware_bound
from pipeline.analysis.confounders import NOT_RECORDED, values_of
from pipeline.analysis.facts import RunFacts
from pipeline.analysis.roles import VARIABLES
from pipeline.planning.job import Job

# What a difference can do where no model says it, log units: the largest seen in public reports of its kind.
_CAN_DO = {
    "software": (0.15, "one configuration moved by 3.7 % (median) to 190 % between public releases"),
    "driver": (0.02, "a driver may change clocks and kernels"),
    "code": (0.02, "the code differs; look at the commits between"),
    "platform": (0.03, "CPUs, NVLink domain and adapters differ"),
    "nodes": (0.08, "only traffic between nodes pays for the network"),
    "data": (0.01, "reading may cost differently"),
    "binding": (0.10, "remote memory and shared cores cost time"),
    "layout": (0.15, "the layout decides bubbles and communication"),
    "techniques": (0.20, "recompute and offload cost time"),
    "micro_batch": (0.10, "small micro-batches leave the GPU idle"),
    "precision": (0.50, "the peak rate differs"),
    "sequence_length": (0.10, "a token of a longer sequence costs more"),
    "global_batch": (0.05, "fewer micro-batches a step make bubbles and reductions weigh more"),
    "model": (0.50, "a token costs what the model makes it cost"),
    "gpus": (0.10, "more GPUs communicate more"),
    "power_limit_watts": (0.15, "clocks under load follow the power limit"),
}
_JOB_FIELDS = (
    ("gpu", ("gpu", "node")),
    ("model", ("model",)),
    ("precision", ("precision",)),
    ("sequence_length", ("sequence_length",)),
    ("techniques", ("techniques",)),
    ("layout", ("layout",)),
)
"""Variables that the step-time model knows, and what of a job they are."""
_OF_OUR_RUNS = ("code", "binding", "data")
"""What no publication records: that it is missing there explains nothing."""
_IN_LAYOUT = frozenset({"gpus", "nodes", "micro_batch", "global_batch"})
_TAIL = 1.05
"""Mean over median of step times from which single slow steps are worth a look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that may explain why B is faster or slower than A."""

    name: str
    factor: float | None
    """Rate of B over that of A that this alone would make; None where only its weight is known."""
    weight: float
    """What it is ranked by: the size of its effect in log units."""
    evidence: str


def causes(a: RunFacts, b: RunFacts) -> list[Cause]:
    """Causes, weightiest first; a difference that no model knows is ranked by the most that was seen of its kind."""
    found = [*_modelled(a, b), *_measured(a, b)]
    named = {one.name for one in found} | (
        {"layout", *_IN_LAYOUT} if any(one.name == "layout" for one in found) else set()
    )
    found += [one for one in _differing(a, b) if one.name not in named]
    return sorted(found, key=lambda one: -one.weight)


def _modelled(a: RunFacts, b: RunFacts) -> Iterator[Cause]:
    """One variable of A after the other set to B's, the rest left alone, through the step-time model."""
    job_a, job_b = job_of_run(a), job_of_run(b)
    if job_a is None or job_b is None:
        yield from _by_data_sheet(a, b)
        return
    for name, parts in _JOB_FIELDS:
        changed = replace(job_a, **{part: getattr(job_b, part) for part in parts})
        if changed == job_a:
            continue
        factor = _factor(job_a, changed)
        if factor is not None:
            shown = f"{values_of([a], name)} vs {values_of([b], name)}; the step-time model makes it x{factor:.3f}"
            yield Cause(name=name, factor=factor, weight=abs(math.log(factor)), evidence=shown)


def _factor(job: Job, changed: Job) -> float | None:
    """None where the change makes no job: a batch that doesn't divide, a format the GPU hasn't."""
    try:
        return predicted_rate(changed) / predicted_rate(job)
    except (ArithmeticError, LookupError, ValueError):
        return None


def _by_data_sheet(a: RunFacts, b: RunFacts) -> Iterator[Cause]:
    bound = hardware_bound(a.gpu, b.gpu, str(a.factors.get("precision")), str(b.factors.get("precision")))
    if a.factors.get("gpu") == b.factors.get("gpu") or bound is None:
        return
    factor = bound.peak_ratio or bound.memory_ratio or 1.0
    yield Cause(name="gpu", factor=factor, weight=abs(math.log(factor)), evidence=f"data sheets: {bound}")


def _differing(a: RunFacts, b: RunFacts) -> Iterator[Cause]:
    for variable in VARIABLES:
        value_a, value_b = values_of([a], variable.key), values_of([b], variable.key)
        unknown = NOT_RECORDED in (value_a, value_b)
        if value_a == value_b or variable.key not in _CAN_DO or (unknown and variable.key in _OF_OUR_RUNS):
            continue
        weight, why = _CAN_DO[variable.key]
        yield Cause(
            name=variable.key,
            factor=None,
            weight=weight * (0.5 if unknown else 1.0),
            evidence=f"{value_a} vs {value_b}; {why}",
        )


def _measured(a: RunFacts, b: RunFacts) -> Iterator[Cause]:
    for name, run in (("A", a), ("B", b)):
        if run.throttled:
            yield Cause(name=f"throttling of {name}", factor=None, weight=0.15, evidence=run.throttled)
        red = [f"rank {rank} on {node.node}" for node in run.bindings for rank in node.red]
        if red:
            shown = f"{', '.join(red)} not where they were put; remote memory was seen to cost up to 22 %"
            yield Cause(name=f"placement of {name}", factor=None, weight=0.2, evidence=shown)
        tail = step_tail(run.steady_step_s)
        if tail is not None and tail > _TAIL:
            shown = f"slow steps make the mean {tail - 1:.0%} longer than the median: data, checkpoints, neighbours"
            yield Cause(name=f"slow steps of {name}", factor=None, weight=math.log(tail), evidence=shown)
    if a.nodes and b.nodes and not set(a.nodes) & set(b.nodes):
        shown = (
            f"{', '.join(a.nodes)} vs {', '.join(b.nodes)}: no node in common; run both on the same to rule nodes out"
        )
        yield Cause(name="other nodes", factor=None, weight=0.03, evidence=shown)


def step_tail(step_s: Sequence[float]) -> float | None:
    """Mean over median of step times; None without any."""
    return statistics.fmean(step_s) / statistics.median(step_s) if step_s else None
