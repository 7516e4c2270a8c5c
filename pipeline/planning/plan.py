"""Experiment -> Plan: everything decided before anything is queued, each with its reason."""

from __future__ import annotations

from pipeline.errors import PlanRefused
from pipeline.model_math import padded_vocab_size, parameters
from pipeline.planning.layout import check_request, derive_layout, uses_gpus
from pipeline.types import Experiment, Layout, Plan, Reason


def make_plan(experiment: Experiment) -> Plan:
    """The plan of a request.

    Raises PlanRefused naming every broken rule, each with what was got and what is allowed.
    """
    layout, reasons = derive_layout(experiment)
    problems = check_request(experiment, layout)
    if problems:
        raise PlanRefused("; ".join(problem.message for problem in problems))
    cpus, why_cpus = _cpus_per_rank(experiment, layout)
    tokens_per_step = layout.global_batch * experiment.recipe.sequence_length
    vocab = padded_vocab_size(experiment.model.vocab_size, layout.tp)
    return Plan(
        experiment=experiment.name,
        layout=layout,
        gpus_per_node=layout.ranks_per_node if uses_gpus(experiment) else 0,
        cpus_per_rank=cpus,
        parameters=parameters(experiment.model),
        padded_vocab_size=vocab,
        tokens_per_step=tokens_per_step,
        total_tokens=tokens_per_step * experiment.recipe.steps,
        reasons=(
            *reasons,
            Reason(what="cpus_per_rank", value=str(cpus or "scheduler's default"), why=why_cpus),
            Reason(what="padded_vocab_size", value=str(vocab), why=f"multiple of 128 x tp {layout.tp}"),
        ),
    )


def _cpus_per_rank(experiment: Experiment, layout: Layout) -> tuple[int | None, str]:
    if experiment.cluster.cpus_per_rank:
        return experiment.cluster.cpus_per_rank, "cluster.cpus_per_rank asks for it"
    if experiment.hardware.cpus_per_node and experiment.cluster.exclusive:
        share = experiment.hardware.cpus_per_node // layout.ranks_per_node
        return (
            share,
            f"{experiment.hardware.cpus_per_node} CPUs of a whole node / {layout.ranks_per_node} ranks",
        )
    return None, "the profile doesn't say how many CPUs a node has"
