"""Memory, speed, cost and searches as text for people."""

from __future__ import annotations

from pipeline.planning.changes import cheapest_fixes
from pipeline.planning.estimates import fix_text
from pipeline.planning.job import Accept, Job, accept_all
from pipeline.planning.memory import estimate_memory
from pipeline.planning.search import Candidate, SearchResult
from pipeline.types import Cost, Fit, Interval, Layout, MemoryEstimate, Plan, Recompute, StageMemory, ThroughputEstimate

_BAR = 24
_SHOWN = 8
"""Stages shown one by one; of more only the first, the fullest and the last."""


def headline(plan: Plan) -> str:
    """Verdict and speed in one line."""
    if plan.memory is None:
        return "not estimated yet: whether it fits shows when it runs"
    worst = plan.memory.worst
    fit = f"{plan.memory.fit.value}, {worst.point_gib:.0f} of {plan.memory.capacity_gib:.0f} GiB"
    if plan.throughput is None:
        return f"{fit}; speed not estimated for this precision"
    return f"{fit}; {_rate(plan.throughput.tokens_per_s)} tokens/s"


def memory_rows(memory: MemoryEstimate) -> list[tuple[str, str]]:
    """One row a stage: bar, expected use and bounds, and what it is made of."""
    rows = [(f"stage {stage.stage}", _stage(stage, memory.capacity_gib)) for stage in _chosen(memory)]
    rows.append(("verdict", _VERDICTS[memory.fit]))
    return rows


_VERDICTS = {
    Fit.fits: "FITS: the upper bound does too",
    Fit.at_risk: "AT_RISK: the upper bound doesn't fit; three iterations on one node tell",
    Fit.refused: "REFUSED: not even the lower bound fits",
}


def _chosen(memory: MemoryEstimate) -> list[StageMemory]:
    if len(memory.stages) <= _SHOWN:
        return list(memory.stages)
    picked = {stage.stage: stage for stage in (memory.stages[0], memory.worst, memory.stages[-1])}
    return [picked[index] for index in sorted(picked)]


def _stage(stage: StageMemory, capacity: float) -> str:
    parts = {
        "weights": stage.weights_gib,
        "gradients": stage.gradients_gib,
        "optimizer": stage.optimizer_gib,
        "activations": stage.activations_gib,
        "loss": stage.loss_gib,
        "buffers": stage.transient_gib,
        "outside torch": stage.outside_torch_gib,
    }
    detail = ", ".join(f"{name} {size:.1f}" for name, size in parts.items() if size >= 0.05)
    bounds = f"{stage.point_gib:.0f} ({stage.lower_gib:.0f} to {stage.upper_gib:.0f}) of {capacity:.0f} GiB"
    return f"{_bar(stage, capacity)} {bounds}: {detail}"


def _bar(stage: StageMemory, capacity: float) -> str:
    """# up to the lower bound, + up to what is expected, . up to the upper bound; | is the capacity."""
    scale = _BAR / max(capacity, stage.upper_gib)
    cells = "".join(
        "#" if cell < stage.lower_gib * scale else "+" if cell < stage.point_gib * scale else "."
        for cell in range(round(stage.upper_gib * scale))
    ).ljust(_BAR)
    at = round(capacity * scale)
    return f"[{cells[:at]}|{cells[at:]}]"


# --------------------------------------------------------------------------- speed and cost


def speed_rows(throughput: ThroughputEstimate) -> list[tuple[str, str]]:
    """Rates with their interval, where the time goes, and what the numbers rest on."""
    return [
        ("tokens/s", f"{_rate(throughput.tokens_per_s)}, {_rate(throughput.tokens_per_s_per_gpu)} a GPU"),
        ("step", f"{throughput.step_s.p50:.3g} s ({throughput.step_s.p10:.3g} to {throughput.step_s.p90:.3g})"),
        ("of the step", _shares(throughput)),
        (
            "model FLOP/s",
            f"{throughput.model_tflops_per_gpu:.0f} TFLOP/s a GPU (causal attention, no recompute counted)",
        ),
        ("calibration", f"{throughput.calibration}, level: {throughput.level}"),
    ]


def _rate(rate: Interval) -> str:
    return f"{rate.p50:,.0f} ({rate.p10:,.0f} to {rate.p90:,.0f})"


_NAMES = {
    "linear_s": "linear layers",
    "attention_s": "attention",
    "memory_bound_s": "memory-bound",
    "recompute_s": "recompute",
    "tensor_parallel_s": "tensor parallel",
    "context_parallel_s": "context parallel",
    "expert_parallel_s": "expert parallel",
    "pipeline_s": "pipeline",
    "data_parallel_s": "data parallel",
    "optimizer_s": "optimizer",
}


def _shares(throughput: ThroughputEstimate) -> str:
    step = throughput.step
    shares = {name: getattr(step, key) / step.total_s for key, name in _NAMES.items()}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)


def cost_rows(cost: Cost) -> list[tuple[str, str]]:
    """Time, GPU-hours, energy and money of the whole run."""
    energy = f"{cost.energy_kwh:,.1f} kWh" if cost.energy_kwh is not None else "unknown"
    money = f"{cost.money:,.2f} {cost.currency}" if cost.money is not None else "unknown"
    return [
        ("time", f"{_hours(cost.hours.p50)} ({_hours(cost.hours.p10)} to {_hours(cost.hours.p90)})"),
        ("GPU-hours", f"{cost.gpu_hours:,.2f}"),
        ("energy", f"{energy}: {cost.energy_basis}"),
        ("money", f"{money}: {cost.money_basis}"),
    ]


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.3g} min"
    return f"{hours:.3g} h" if hours < 72 else f"{hours / 24:.3g} days"


# --------------------------------------------------------------------------- searches


def search_text(asked: Job, result: SearchResult, accept: Accept = accept_all) -> str:
    """What `plan --search` prints: the best layouts that differ in kind, why, and what became of the one asked for."""
    lines = [
        f"search: {result.tried} layouts, {result.illegal} break a rule, {result.refused} can't fit",
        *(_candidate(index, one, result.best[0]) for index, one in enumerate(result.best, start=1)),
    ]
    if not result.best:
        lines.append("  none fits on these GPUs")
    if result.too_close:
        lines.append(
            "  1 and 2 lie within each other's error: run both for 30 steps and compare before you commit to either"
        )
    return "\n".join([*lines, *_asked(asked, accept)]) + "\n"


def _candidate(index: int, one: Candidate, first: Candidate) -> str:
    throughput, worst = one.throughput, one.memory.worst
    against = "" if one is first else f", {one.rate / first.rate:.2f} x the first"
    return (
        f"  {index}  {layout_text(one.job.layout)}, {_recompute(one.job)}: "
        f"{_rate(throughput.tokens_per_s)} tokens/s{against}; {one.memory.fit.value}, {worst.point_gib:.0f} of "
        f"{one.memory.capacity_gib:.0f} GiB\n     most time: {_largest(throughput)}\n"
        f"     {_overrides(one.job)}"
    )


def layout_text(layout: Layout) -> str:
    """Parallel sizes in short."""
    sizes = {"tp": layout.tp, "pp": layout.pp, "vp": layout.vp, "cp": layout.cp, "ep": layout.ep, "dp": layout.dp}
    found = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return f"{found or 'one rank'}, micro-batch {layout.micro_batch}"


def _recompute(job: Job) -> str:
    techniques = job.techniques
    if techniques.recompute is Recompute.selective:
        return f"recompute {'+'.join(techniques.recompute_modules)}"
    return f"recompute {techniques.recompute.value}" if techniques.recompute is Recompute.full else "no recompute"


def _largest(throughput: ThroughputEstimate) -> str:
    step = throughput.step
    shares = sorted(((getattr(step, key) / step.total_s, name) for key, name in _NAMES.items()), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in shares[:3])


def _overrides(job: Job) -> str:
    layout, techniques = job.layout, job.techniques
    words = [f"layout.tp={layout.tp}", f"layout.pp={layout.pp}", f"layout.cp={layout.cp}"]
    words += [f"layout.{name}={size}" for name, size in (("vp", layout.vp), ("ep", layout.ep)) if size > 1]
    words += [f"layout.chunk_layers=[{','.join(map(str, layout.chunk_layers))}]"] if layout.chunk_layers else []
    words += ["layout.sequence_parallel=true"] if layout.sequence_parallel else []
    words += [f"recipe.micro_batch={layout.micro_batch}"]
    if techniques.recompute is not Recompute.none:
        words.append(f"techniques.recompute={techniques.recompute.value}")
    if techniques.recompute is Recompute.selective:
        words.append(f"techniques.recompute_modules=[{','.join(techniques.recompute_modules)}]")
    return " ".join(words)


def _asked(job: Job, accept: Accept) -> list[str]:
    """The layout as it was asked for, and the least change when that can't fit."""
    memory = estimate_memory(job)
    text = f"as asked: {layout_text(job.layout)}: {memory.fit.value}"
    if memory.fit is not Fit.refused:
        return [text]
    return [text, *(f"  least change that fits: {fix_text(fix)}" for fix in cheapest_fixes(job, accept))]
