"""The least change that makes a job fit, in order of what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pipeline.planning.job import Accept, Job, accept_all
from pipeline.planning.memory import estimate_memory
from pipeline.planning.rules import is_legal
from pipeline.planning.throughput import estimate_throughput
from pipeline.types import CrossEntropy, DType, Fit, Layout, MemoryEstimate, Recompute, Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """Changes that together make a job fit, and what they cost."""

    changes: tuple[str, ...]
    """As overrides."""
    numerics: bool
    """They change the numbers the run computes: to be asked for, never assumed."""
    job: Job
    memory: MemoryEstimate
    slowdown: float
    """GPU-time of a step / that of the step as asked for."""


@dataclass(frozen=True, slots=True)
class _Step:
    apply: Callable[[Job], Job | None]
    """The job with one change; None where it doesn't apply."""
    numerics: bool = False


def cheapest_fixes(job: Job, accept: Accept = accept_all) -> tuple[Fix, ...]:
    """The cheapest fix that leaves numerics alone and, where it comes cheaper, the one that doesn't.

    Each passes only through jobs that `accept` takes, as the training side does with what it can run; where it doesn't
    even take the job as it is, this is about planning alone and anything goes. Empty when nothing here is enough.
    """
    if not accept(job):
        accept = accept_all
    exact, free = _cheapest(job, accept, numerics=False), _cheapest(job, accept, numerics=True)
    found = [fix for fix in (exact, free) if fix is not None]
    return tuple(found[:1] if len(found) == 2 and found[0].changes == found[1].changes else found)


def _cheapest(job: Job, accept: Accept, *, numerics: bool) -> Fix | None:
    """The first single change that fits, in order of cost; else changes piled up in that order until they do."""
    steps = [step for step in _ORDER if numerics or not step.numerics]
    for step in steps:
        changed = _legal_step(job, step, accept)
        if changed is not None and _fits(changed):
            return _fix(job, [step])
    taken: list[_Step] = []
    current = job
    for step in steps:
        changed = _legal_step(current, step, accept)
        if changed is None:
            continue
        current, taken = changed, [*taken, step]
        if _fits(current):
            return _fix(job, _needed(job, taken, accept))
    return None


def _legal_step(job: Job, step: _Step, accept: Accept) -> Job | None:
    changed = step.apply(job)
    return changed if changed is not None and changed != job and is_legal(changed) and accept(changed) else None


def _needed(job: Job, taken: list[_Step], accept: Accept) -> list[_Step]:
    """Without each step that the others don't need, the dearest first."""
    for step in reversed(taken[:-1]):
        rest = [one for one in taken if one is not step]
        without = _replayed(job, rest)
        if without is not None and is_legal(without) and accept(without) and _fits(without):
            taken = rest
    return taken


def _replayed(job: Job, taken: Iterable[_Step]) -> Job | None:
    current: Job | None = job
    for step in taken:
        current = step.apply(current) if current is not None else None
    return current


def _fits(job: Job) -> bool:
    return estimate_memory(job).fit is not Fit.refused


def _fix(job: Job, taken: list[_Step]) -> Fix:
    changed = _replayed(job, taken)
    assert changed is not None
    before = estimate_throughput(job).step_s.p50 * job.layout.ranks
    after = estimate_throughput(changed).step_s.p50 * changed.layout.ranks
    return Fix(
        changes=tuple(overrides(job, changed)),
        numerics=any(step.numerics for step in taken),
        job=changed,
        memory=estimate_memory(changed),
        slowdown=after / before,
    )


# --------------------------------------------------------------------------- the steps


def _techniques(job: Job, **words: object) -> Job:
    return dataclasses.replace(job, techniques=dataclasses.replace(job.techniques, **words))  # type: ignore[arg-type]


def _expandable(job: Job) -> Job:
    return _techniques(job, expandable_segments=True)


def _unfused_loss(job: Job) -> Job | None:
    """Megatron-Core's fused kernel keeps 10 bytes a logit, the plain one 6."""
    if job.techniques.cross_entropy is not CrossEntropy.native:
        return None
    return _techniques(job, cross_entropy=CrossEntropy.unfused)


def _fused_loss(job: Job) -> Job:
    return _techniques(job, cross_entropy=CrossEntropy.te)


def _half_grads(job: Job) -> Job | None:
    return _techniques(job, grads=DType.bf16) if job.precision.dtype is DType.bf16 else None


def _cheap_modules(job: Job) -> Job | None:
    if job.techniques.recompute is not Recompute.none:
        return None
    modules = ["layernorm"] + (["moe_act"] if job.model.moe else []) + (["mla_up_proj"] if job.model.mla else [])
    return _techniques(job, recompute=Recompute.selective, recompute_modules=modules)


def _large_modules(job: Job) -> Job | None:
    if job.techniques.recompute is Recompute.full:
        return None
    before = [module for module in job.techniques.recompute_modules if module != "moe_act"]
    added = ["mlp"] + (["moe"] if job.model.moe else [])
    return _techniques(job, recompute=Recompute.selective, recompute_modules=list(dict.fromkeys([*before, *added])))


def _full(job: Job) -> Job:
    return _techniques(job, recompute=Recompute.full, recompute_modules=[], recompute_num_layers=1)


def _smaller_micro_batch(job: Job) -> Job | None:
    layout = job.layout
    return _resized(job, micro_batch=layout.micro_batch // 2) if layout.micro_batch > 1 else None


def _more_cp(job: Job) -> Job | None:
    return _resized(job, cp=2 * job.layout.cp)


def _more_tp(job: Job) -> Job | None:
    return _resized(job, tp=2 * job.layout.tp, sequence_parallel=True)


def _more_pp(job: Job) -> Job | None:
    return _resized(job, pp=2 * job.layout.pp)


def _more_ep(job: Job) -> Job | None:
    return _resized(job, ep=2 * job.layout.ep) if job.model.moe else None


def _no_chunks(job: Job) -> Job | None:
    return _resized(job, vp=1) if job.layout.vp > 1 else None


def _half_moments(job: Job) -> Job | None:
    return _techniques(job, moments=DType.bf16) if job.distributed_optimizer else None


def _low_params(job: Job) -> Job | None:
    if job.precision.low_precision is None:
        return None
    return dataclasses.replace(job, precision=dataclasses.replace(job.precision, low_precision_params=True))


def _fsdp(job: Job) -> Job:
    return _techniques(job, sharding=Sharding.optim_grads_params)


def _offload(job: Job) -> Job:
    return _techniques(job, optimizer_offload=1.0)


def _more_nodes(job: Job) -> Job | None:
    """Twice the GPUs, the added ones in the pipeline when the model is divided already, else data parallel."""
    layout = job.layout
    nodes = dataclasses.replace(layout, nodes=2 * layout.nodes)
    return _resized(dataclasses.replace(job, layout=nodes), pp=2 * layout.pp)


def _resized(job: Job, **sizes: int) -> Job | None:
    """The job with other sizes and the batch arithmetic that follows; None where they don't divide."""
    layout: Layout = dataclasses.replace(job.layout, chunk_layers=(), **sizes)  # type: ignore[arg-type]
    parallel = layout.tp * layout.pp * layout.cp
    if layout.ranks % parallel:
        return None
    dp = layout.ranks // parallel
    portion = layout.micro_batch * dp
    if layout.global_batch % portion:
        return None
    divided = dataclasses.replace(layout, dp=dp, num_microbatches=layout.global_batch // portion)
    return dataclasses.replace(job, layout=divided)


# In order of cost (planner, 4.5).
_ORDER: tuple[_Step, ...] = (
    _Step(_expandable),
    _Step(_unfused_loss),
    _Step(_fused_loss),
    _Step(_half_grads, numerics=True),
    _Step(_cheap_modules),
    _Step(_smaller_micro_batch),
    *[_Step(_more_ep)] * 6,
    _Step(_more_cp),
    _Step(_more_tp),
    _Step(_more_tp),
    _Step(_more_tp),
    _Step(_no_chunks),
    _Step(_half_moments, numerics=True),
    _Step(_large_modules),
    _Step(_low_params, numerics=True),
    _Step(_full),
    _Step(_more_pp),
    _Step(_more_pp),
    _Step(_fsdp),
    _Step(_offload),
    _Step(_more_nodes),
    _Step(_more_nodes),
    _Step(_more_nodes),
    _Step(_more_nodes),
)


# --------------------------------------------------------------------------- as overrides


def overrides(before: Job, after: Job) -> Iterator[str]:
    """The difference of two jobs in the words of the command line."""
    for name in ("tp", "pp", "cp", "vp", "ep", "etp", "sequence_parallel"):
        yield from _changed(f"layout.{name}", getattr(before.layout, name), getattr(after.layout, name))
    old_chunks, new_chunks = list(before.layout.chunk_layers), list(after.layout.chunk_layers)
    yield from _changed("layout.chunk_layers", old_chunks, new_chunks)
    yield from _changed("nodes", before.layout.nodes, after.layout.nodes)
    yield from _changed("recipe.micro_batch", before.layout.micro_batch, after.layout.micro_batch)
    for field in dataclasses.fields(before.techniques):
        old, new = getattr(before.techniques, field.name), getattr(after.techniques, field.name)
        yield from _changed(f"techniques.{field.name}", old, new)
    old, new = before.precision.low_precision_params, after.precision.low_precision_params
    yield from _changed("precision.low_precision_params", old, new)


def _changed(key: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"{key}={_word(new)}"


def _word(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list():
            return "[" + ",".join(map(str, value)) + "]"
        case _:
            return str(getattr(value, "value", value))
