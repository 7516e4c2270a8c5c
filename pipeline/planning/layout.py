"""The layout of a run: derived from the request, then checked against the rules.

Deriving and checking are two functions, and a check never assigns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.model_math import head_dim
from pipeline.types import (
    Cluster,
    CpuPolicy,
    Experiment,
    Layout,
    LayoutRequest,
    ModelSpec,
    OptimizerSpec,
    Reason,
    Recipe,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that a layout breaks."""

    rule: str
    """Short name of the rule, stable."""
    message: str
    """What, got, allowed and the next step, on one line."""


def ranks_per_node(experiment: Experiment) -> tuple[int, str]:
    """Ranks that share one node, and why."""
    cluster, hardware = experiment.cluster, experiment.hardware
    if cluster.ranks_per_node:
        return cluster.ranks_per_node, f"cluster {cluster.name} says so"
    if uses_gpus(experiment):
        return hardware.gpus_per_node, f"one a GPU, {hardware.name} has {hardware.gpus_per_node}"
    return hardware.cpu_ranks_per_node, f"ranks on the CPU, {hardware.name} takes {hardware.cpu_ranks_per_node}"


def uses_gpus(experiment: Experiment) -> bool:
    """Whether ranks compute on GPUs."""
    return experiment.hardware.gpus_per_node > 0


def derive_layout(experiment: Experiment) -> tuple[Layout, tuple[Reason, ...]]:
    """The layout the request implies, legal or not, with the reason for each derived value."""
    per_node, why_per_node = ranks_per_node(experiment)
    nodes, per_node, why_nodes = _nodes(experiment, per_node)
    request, recipe = experiment.layout, experiment.recipe
    ranks = nodes * per_node
    tp, pp, cp, ep = request.tp or 1, request.pp or 1, request.cp or 1, request.ep or 1
    dp = max(1, ranks // (tp * pp * cp))
    micro_batches = max(1, recipe.global_batch // max(1, recipe.micro_batch * dp))
    layout = Layout(
        nodes=nodes,
        ranks_per_node=per_node,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        sequence_parallel=request.sequence_parallel,
        micro_batch=recipe.micro_batch,
        global_batch=recipe.global_batch,
        num_microbatches=micro_batches,
        vp=request.vp or 1,
        ep=ep,
        etp=request.etp or default_etp(experiment.model, tp=tp, ep=ep),
        chunk_layers=tuple(request.chunk_layers),
        shard_replicas=request.shard_replicas or 1,
    )
    return layout, (
        Reason(what="ranks_per_node", value=str(per_node), why=why_per_node),
        Reason(what="nodes", value=str(nodes), why=why_nodes),
        _size_reason("tp", request.tp, tp),
        _size_reason("pp", request.pp, pp),
        _size_reason("cp", request.cp, cp),
        *_asked_sizes(request),
        Reason(what="dp", value=str(dp), why=f"{ranks} ranks / (tp {tp} x pp {pp} x cp {cp})"),
        Reason(
            what="num_microbatches",
            value=str(micro_batches),
            why=f"global_batch {recipe.global_batch} / (micro_batch {recipe.micro_batch} x dp {dp})",
        ),
    )


def default_etp(model: ModelSpec, *, tp: int, ep: int) -> int:
    """Without expert parallelism experts are split as all else is; with it they stay whole."""
    return tp if model.moe is not None and ep == 1 else 1


def _asked_sizes(request: LayoutRequest) -> Iterator[Reason]:
    """The sizes that are 1 unless somebody asks for more."""
    for name in ("vp", "ep", "etp"):
        asked = getattr(request, name)
        if asked is not None:
            yield _size_reason(name, asked, asked)


def _nodes(experiment: Experiment, per_node: int) -> tuple[int, int, str]:
    """Nodes, ranks on each, and why; a run smaller than one node takes part of it."""
    nodes, ranks = experiment.nodes, experiment.ranks
    if ranks is None:
        return nodes or 1, per_node, "as asked" if nodes else "one unless asked otherwise"
    if nodes is None:
        if ranks <= per_node:
            return 1, ranks, f"{ranks} ranks fit on one"
        return -(-ranks // per_node), per_node, f"{ranks} ranks, {per_node} on each"
    return nodes, max(1, ranks // nodes), f"as asked, for {ranks} ranks"


def _size_reason(name: str, asked: int | None, value: int) -> Reason:
    return Reason(
        what=name,
        value=str(value),
        why="1 unless asked otherwise" if asked is None else f"layout.{name} asks for it",
    )


# --------------------------------------------------------------------------- rules


def check_request(experiment: Experiment, layout: Layout) -> list[Problem]:
    """All rules at once: sizes, machine, batch and model."""
    problems = list(_check_positive(experiment))
    if problems:  # the arithmetic below divides by these
        return problems
    return [
        *_check_binding(experiment.cluster),
        *_check_ranks(experiment, layout),
        *check_layout(layout, experiment.model, experiment.recipe),
        *_check_schedule(experiment.optimizer, experiment.recipe),
    ]


def check_layout(layout: Layout, model: ModelSpec, recipe: Recipe) -> list[Problem]:
    """The rules of Megatron-Core and of arithmetic that tie a layout to a model and a recipe."""
    return [*_check_batch(layout), *_check_model(layout, model), *_check_sequence(layout, model, recipe)]


def _check_positive(experiment: Experiment) -> Iterator[Problem]:
    model, recipe, request = experiment.model, experiment.recipe, experiment.layout
    named = {
        "recipe.steps": recipe.steps,
        "recipe.sequence_length": recipe.sequence_length,
        "recipe.micro_batch": recipe.micro_batch,
        "recipe.global_batch": recipe.global_batch,
        "model.num_layers": model.num_layers,
        "model.hidden_size": model.hidden_size,
        "model.ffn_hidden_size": model.ffn_hidden_size,
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.num_query_groups,
        "model.vocab_size": model.vocab_size,
        "model.max_sequence_length": model.max_sequence_length,
        "model.head_dim": model.head_dim,
        "cluster.time_limit_min": experiment.cluster.time_limit_min,
        "cluster.ranks_per_node": experiment.cluster.ranks_per_node,
        "hardware.cpu_ranks_per_node": experiment.hardware.cpu_ranks_per_node,
        "layout.tp": request.tp,
        "layout.pp": request.pp,
        "layout.cp": request.cp,
        "layout.vp": request.vp,
        "layout.ep": request.ep,
        "layout.etp": request.etp,
        "layout.shard_replicas": request.shard_replicas,
        "nodes": experiment.nodes,
        "ranks": experiment.ranks,
    }
    for key, value in named.items():
        if value is not None and value < 1:
            yield Problem("positive", f"{key}: got {value}; allowed: 1 or more; give {key}=N")


def _check_binding(cluster: Cluster) -> Iterator[Problem]:
    need = cluster.bind_memory_gib_per_rank
    if need is not None and need <= 0:
        yield Problem("positive", f"cluster.bind_memory_gib_per_rank: got {need:g}; allowed: above 0")
    if need is not None and cluster.binding is CpuPolicy.none:
        yield Problem(
            "binding",
            "cluster.bind_memory_gib_per_rank: has no effect with cluster.binding=none; leave one of the two out",
        )


def _check_ranks(experiment: Experiment, layout: Layout) -> Iterator[Problem]:
    per_node, _ = ranks_per_node(experiment)
    asked = experiment.ranks if experiment.ranks is not None else layout.ranks
    if asked != layout.ranks:
        yield Problem(
            "ranks",
            f"ranks: got {asked}, but {layout.nodes} nodes hold {layout.ranks_per_node} each = {layout.ranks}; "
            f"give a multiple of the nodes",
        )
    if layout.ranks_per_node > per_node:
        yield Problem(
            "ranks_per_node",
            f"ranks: {layout.ranks_per_node} on one node, {experiment.hardware.name} on {experiment.cluster.name} "
            f"takes {per_node}; give more nodes=N or fewer ranks=N",
        )
    parallel = layout.tp * layout.pp * layout.cp
    if parallel > layout.ranks or layout.ranks % parallel:
        yield Problem(
            "world",
            f"layout: tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {parallel} must divide "
            f"the {layout.ranks} ranks; change layout.tp, layout.pp, layout.cp or ranks",
        )


def _check_batch(layout: Layout) -> Iterator[Problem]:
    portion = layout.micro_batch * layout.dp
    if layout.global_batch % portion:
        yield Problem(
            "global_batch",
            f"recipe.global_batch: got {layout.global_batch}, must be a multiple of micro_batch {layout.micro_batch} "
            f"x dp {layout.dp} = {portion}; nearest: {_nearest(layout.global_batch, portion)}",
        )


def _check_model(layout: Layout, model: ModelSpec) -> Iterator[Problem]:
    for key, value in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.num_query_groups),
        ("ffn_hidden_size", model.ffn_hidden_size),
    ):
        if value % layout.tp:
            yield Problem(
                key,
                f"model.{key}: {value} can't be split over tp {layout.tp}; give a layout.tp that divides it",
            )
    if model.num_attention_heads % model.num_query_groups:
        yield Problem(
            "groups_of_heads",
            f"model.num_query_groups: {model.num_query_groups} must divide num_attention_heads "
            f"{model.num_attention_heads}",
        )
    if model.head_dim is None and model.hidden_size % model.num_attention_heads:
        yield Problem(
            "head_dim",
            f"model.hidden_size: {model.hidden_size} is not a multiple of num_attention_heads "
            f"{model.num_attention_heads}; give model.head_dim",
        )
    if head_dim(model) % 2:
        yield Problem(
            "rope", f"model.head_dim: {head_dim(model)} is odd; rotary embeddings turn pairs, give an even one"
        )
    if model.num_layers % layout.pp and not layout.chunk_layers:
        yield Problem(
            "layers", f"model.num_layers: {model.num_layers} can't be split over pp {layout.pp} stages evenly"
        )


def _check_sequence(layout: Layout, model: ModelSpec, recipe: Recipe) -> Iterator[Problem]:
    length = recipe.sequence_length
    if length > model.max_sequence_length:
        yield Problem(
            "max_sequence_length",
            f"recipe.sequence_length: got {length}, {model.name} takes at most {model.max_sequence_length}",
        )
    if layout.cp > 1 and length % (2 * layout.cp):
        yield Problem("cp", f"recipe.sequence_length: {length} must be a multiple of 2 x cp {layout.cp}")
    if layout.sequence_parallel and layout.tp == 1:
        yield Problem("sequence_parallel", "layout.sequence_parallel: needs layout.tp of 2 or more, got 1")
    if layout.sequence_parallel and (length // layout.cp) % layout.tp:
        yield Problem(
            "sequence_parallel_split",
            f"recipe.sequence_length: {length} / cp {layout.cp} must be a multiple of tp {layout.tp}",
        )


def _check_schedule(optimizer: OptimizerSpec, recipe: Recipe) -> Iterator[Problem]:
    if not 0 <= optimizer.warmup_steps < recipe.steps:
        yield Problem(
            "warmup",
            f"optimizer.warmup_steps: got {optimizer.warmup_steps}; allowed: 0 to {recipe.steps - 1} "
            f"(fewer than recipe.steps)",
        )
    if not 0 <= optimizer.min_lr <= optimizer.lr:
        yield Problem("lr", f"optimizer.min_lr: got {optimizer.min_lr}; allowed: 0 to optimizer.lr {optimizer.lr}")


def _nearest(value: int, unit: int) -> str:
    below, above = value // unit * unit, -(-value // unit) * unit
    return f"{below} or {above}" if below else str(above)
