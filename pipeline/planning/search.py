"""Layouts of a job, tried all: what is legal, what fits, what is fastest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from pipeline.planning.calibration import DEFAULT_STACK, UNCALIBRATED, Calibration
from pipeline.planning.job import Accept, Job, accept_all
from pipeline.planning.layout import default_etp
from pipeline.planning.memory import estimate_memory
from pipeline.planning.rules import is_legal
from pipeline.planning.stages import chunk_sizes
from pipeline.planning.throughput import estimate_throughput
from pipeline.types import Fit, Layout, MemoryEstimate, Recompute, Techniques, ThroughputEstimate

LIMIT = 10_000
"""Layouts looked at; more are thinned out evenly."""
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_RISK_PENALTY = 0.97
"""What an AT_RISK layout's rate is worth beside one that fits."""
_DOUBT_PENALTY = 0.7
"""The same where even the expected use is above capacity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A legal layout that isn't refused."""

    job: Job
    memory: MemoryEstimate
    throughput: ThroughputEstimate

    @property
    def rate(self) -> float:
        """Tokens/s of the job at P50."""
        return self.throughput.tokens_per_s.p50

    @property
    def kind(self) -> tuple[object, ...]:
        """What makes two candidates different in kind: how the model is divided, and whether layers run twice."""
        layout = self.job.layout
        return layout.tp, layout.pp, layout.cp, layout.ep, self.job.techniques.recompute is Recompute.full


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search found."""

    best: tuple[Candidate, ...]
    """The fastest of each kind, fastest first."""
    accepted: bool
    """Whether the best are among those that were to be preferred; False where none of them may fit."""
    tried: int
    illegal: int
    refused: int
    too_close: bool
    """The first two lie within each other's interval: a short A/B run decides, not the model."""


def search(
    job: Job,
    *,
    keep: int = 3,
    calibration: Calibration = UNCALIBRATED,
    stack: str = DEFAULT_STACK,
    limit: int = LIMIT,
    only_layout: bool = False,
    accept: Accept = accept_all,
) -> SearchResult:
    """The best layouts for a job's model, batch, formats and number of GPUs.

    With `only_layout` the micro-batch and the techniques stay as asked. What `accept` turns down, as the training
    side does with what it can't build, is only shown where nothing else may fit.
    """
    tried = illegal = refused = 0
    found: list[Candidate] = []
    for one in candidates(job, limit, only_layout=only_layout):
        tried += 1
        if not is_legal(one):
            illegal += 1
            continue
        memory = estimate_memory(one)
        if memory.fit is Fit.refused:
            refused += 1
            continue
        throughput = estimate_throughput(one, calibration=calibration, stack=stack)
        found.append(Candidate(job=one, memory=memory, throughput=throughput))
    found.sort(key=_worth, reverse=True)
    accepted = _best_of_kinds(found, keep, accept)
    best = accepted or _best_of_kinds(found, keep, accept_all)
    return SearchResult(
        best=best,
        accepted=bool(accepted),
        tried=tried,
        illegal=illegal,
        refused=refused,
        too_close=len(best) > 1 and _close(best[0], best[1]),
    )


def _best_of_kinds(ordered: list[Candidate], keep: int, accept: Accept) -> tuple[Candidate, ...]:
    best: dict[tuple[object, ...], Candidate] = {}
    for one in ordered:
        if one.kind not in best and accept(one.job):
            best[one.kind] = one
        if len(best) == keep:
            break
    return tuple(best.values())


def _worth(one: Candidate) -> tuple[float, float]:
    """Rate, less a little at risk; of equals the one with more memory to spare."""
    return round(one.rate * _confidence(one.memory), 6), -one.memory.worst.upper_gib


def _confidence(memory: MemoryEstimate) -> float:
    if memory.fit is Fit.fits:
        return 1.0
    return _RISK_PENALTY if memory.worst.point_gib <= memory.capacity_gib else _DOUBT_PENALTY


def _close(first: Candidate, second: Candidate) -> bool:
    return second.throughput.tokens_per_s.p90 >= first.throughput.tokens_per_s.p50


# --------------------------------------------------------------------------- enumerating


def candidates(job: Job, limit: int = LIMIT, *, only_layout: bool = False) -> Iterator[Job]:
    """Every combination of sizes worth looking at, legal or not; more than `limit` are thinned out evenly."""
    micro_batches = (job.layout.micro_batch,) if only_layout else _MICRO_BATCHES
    techniques = [job.techniques] if only_layout else _techniques(job)
    combinations = [*product(_layouts(job, micro_batches), techniques)]
    for layout, chosen in combinations[:: -(-len(combinations) // limit) or 1]:
        yield dataclasses.replace(job, layout=layout, techniques=chosen)


def _layouts(job: Job, micro_batches: Iterable[int]) -> Iterator[Layout]:
    ranks, model = job.layout.ranks, job.model
    domain = job.node.nvlink_domain_gpus or job.layout.ranks_per_node
    experts = model.moe.num_experts if model.moe else 1
    for tp, cp, pp in product(_powers(min(domain, ranks)), _powers(min(16, ranks)), _divisors(ranks)):
        parallel = tp * cp * pp
        if parallel > ranks or ranks % parallel or job.sequence_length % (2 * cp * tp):
            continue
        if model.num_layers % pp and (pp & (pp - 1) or pp > model.num_layers):
            continue
        dp = ranks // parallel
        uneven = chunk_sizes(model.num_layers, pp) if model.num_layers % pp else ()
        for vp, ep, micro in product(
            _chunks(0 if uneven else model.num_layers // pp, pp), _powers(min(experts, ranks)), micro_batches
        ):
            if job.layout.global_batch % (micro * dp) == 0 and ranks % (ep * pp) == 0:
                yield dataclasses.replace(
                    job.layout,
                    tp=tp,
                    cp=cp,
                    pp=pp,
                    vp=vp,
                    ep=ep,
                    etp=default_etp(model, tp=tp, ep=ep),
                    dp=dp,
                    micro_batch=micro,
                    sequence_parallel=tp > 1,
                    chunk_layers=uneven,
                    num_microbatches=job.layout.global_batch // (micro * dp),
                )


def _techniques(job: Job) -> Iterable[Techniques]:
    """As asked for and, where nothing is recomputed, cheaper in memory: some modules, whole layers."""
    asked = job.techniques
    if asked.recompute is not Recompute.none:
        return [asked]
    modules = ["layernorm", "moe_act"] if job.model.moe else ["layernorm"]
    modules += ["mla_up_proj"] if job.model.mla else []
    some = dataclasses.replace(asked, recompute=Recompute.selective, recompute_modules=modules)
    return [asked, some, dataclasses.replace(asked, recompute=Recompute.full, recompute_modules=[])]


def _powers(limit: int) -> list[int]:
    return [1 << exponent for exponent in range(limit.bit_length()) if 1 << exponent <= limit]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, min(number, 64) + 1) if number % size == 0]


def _chunks(layers: int, pp: int) -> list[int]:
    """Numbers of model chunks on a stage: one without a pipeline or in an uneven one, else divisors of its layers."""
    return [1] if pp == 1 or not layers else [size for size in range(1, min(layers, 12) + 1) if layers % size == 0]
