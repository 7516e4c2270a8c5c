"""The plan as text for people: what is decided, why, and the exact script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.planning.render_estimates import cost_rows, headline, memory_rows, speed_rows
from pipeline.types import Cluster, CpuPolicy, Experiment, LauncherKind, Layout, Plan, Submission


def plan_text(experiment: Experiment, plan: Plan, submission: Submission, script: str) -> str:
    """All of a plan as it is printed by `plan` and stored with a run."""
    blocks = (
        _table("", _headline(experiment, plan)),
        _table("layout", _layout(plan.layout)),
        *_estimates(plan),
        _table("resources", _resources(experiment, plan, submission)),
        _table("why", [(reason.what, f"{reason.value}: {reason.why}") for reason in plan.reasons]),
        "job script\n" + "\n".join(f"  {line}".rstrip() for line in script.splitlines()),
    )
    return "\n\n".join(blocks) + "\n"


def _headline(experiment: Experiment, plan: Plan) -> list[tuple[str, str]]:
    model = experiment.model
    return [
        ("experiment", plan.experiment),
        ("hardware", _described(experiment.hardware.name, experiment.hardware.description)),
        ("cluster", _described(experiment.cluster.name, experiment.cluster.description)),
        ("model", f"{model.name}, {_count(plan.parameters)} parameters, vocabulary {plan.padded_vocab_size}"),
        ("precision", experiment.precision.name),
        ("training", _training(experiment, plan)),
        ("memory, speed", headline(plan)),
    ]


def _training(experiment: Experiment, plan: Plan) -> str:
    recipe = experiment.recipe
    if experiment.rehearsal:
        return "none: a rehearsal, ranks take their places, look at themselves and end"
    return (
        f"{recipe.steps} steps x {recipe.global_batch} samples of {recipe.sequence_length} tokens "
        f"= {_count(plan.total_tokens)} tokens"
    )


def _estimates(plan: Plan) -> Iterator[str]:
    """Memory, speed, cost and warnings, as far as they were estimated."""
    if plan.memory:
        yield _table("memory", memory_rows(plan.memory))
    if plan.throughput:
        yield _table("speed", speed_rows(plan.throughput))
    if plan.cost:
        yield _table("cost", cost_rows(plan.cost))
    if plan.warnings:
        yield _table("warnings", [("", warning) for warning in plan.warnings])


def _layout(layout: Layout) -> list[tuple[str, str]]:
    sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp}"
    further = (("vp", layout.vp), ("ep", layout.ep), ("etp", layout.etp))
    sizes += "".join(f", {name} {size}" for name, size in further if size > 1)
    return [
        ("ranks", f"{layout.ranks} = {layout.nodes} nodes x {layout.ranks_per_node}"),
        ("parallel", sizes + (", sequence parallel" if layout.sequence_parallel else "")),
        (
            "batch",
            f"{layout.global_batch} samples a step = micro-batch {layout.micro_batch} "
            f"x {layout.num_microbatches} accumulated x dp {layout.dp}",
        ),
    ]


def _resources(experiment: Experiment, plan: Plan, submission: Submission) -> list[tuple[str, str]]:
    where = "this machine" if submission.launcher is LauncherKind.local else "Slurm"
    gpus = f"{plan.gpus_per_node} GPUs a node" if plan.gpus_per_node else "no GPU"
    cpus = f"{plan.cpus_per_rank} CPUs a rank" if plan.cpus_per_rank else "CPUs as the node gives them"
    return [
        ("through", where),
        ("nodes", f"{submission.nodes}, {submission.ranks_per_node} ranks each, {gpus}, {cpus}"),
        ("binding", _binding(experiment.cluster)),
        *_strictness(experiment),
        ("time limit", f"{submission.time_limit_min} min"),
        ("run directory", submission.run_dir),
    ]


def _binding(cluster: Cluster) -> str:
    policy, need = cluster.binding, cluster.bind_memory_gib_per_rank
    match policy:
        case CpuPolicy.strict:
            what = "cores and memory of each rank's own NUMA node"
        case CpuPolicy.spread:
            what = "as strict, with the cores of GPU-less NUMA nodes of the same socket"
        case CpuPolicy.equalize:
            what = "as strict, with as many cores for every rank as the poorest has"
        case CpuPolicy.none:
            what = "CPUs and memory are left to the kernel"
    hard = "" if need is None else f"; memory bound hard where its node has {need:g} GiB free for each rank there"
    return f"{policy.value}: {what}{hard}"


def _strictness(experiment: Experiment) -> list[tuple[str, str]]:
    if not experiment.cluster.strict_profile:
        return []
    return [("profile", f"strict: a node that is not what {experiment.hardware.name} expects ends the run")]


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "\n".join(f"  {name:<18} {value}" for name, value in rows)
    return f"{title}\n{body}" if title else body


def _described(name: str, description: str) -> str:
    return f"{name}: {description}" if description else name


def _count(number: int) -> str:
    """12345678 as 12.3 M."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
