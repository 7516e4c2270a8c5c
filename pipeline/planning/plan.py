"""Experiment -> Plan: everything decided before anything is queued, each with its reason."""

from __future__ import annotations

from pipeline.errors import PlanRefused
from pipeline.model_math import padded_vocab_size, parameters
from pipeline.planning.calibration import UNCALIBRATED, Calibration
from pipeline.planning.estimates import choose_layout, estimate, job_of, refuse_what_cannot_fit
from pipeline.planning.job import Accept, accept_all
from pipeline.planning.layout import Problem, check_request, derive_layout, uses_gpus
from pipeline.planning.rules import check_job
from pipeline.planning.software import check_software
from pipeline.planning.traps import check_traps
from pipeline.types import Experiment, Layout, Plan, Reason


def make_plan(
    experiment: Experiment,
    calibration: Calibration = UNCALIBRATED,
    *,
    accept: Accept = accept_all,
) -> Plan:
    """The plan of a request; where a layout has to be chosen, one that `accept` takes is preferred.

    Raises PlanRefused naming every broken rule, each with what was got and what is allowed, or that memory can't
    suffice, with the least change that fits.
    """
    layout, reasons = derive_layout(experiment)
    job = job_of(experiment, layout)
    problems = [
        *check_request(experiment, layout),
        *check_job(job),
        *check_traps(experiment, layout),
        *check_software(job, experiment.hardware.software),
    ]
    job, why_layout = choose_layout(experiment, job, problems, calibration, accept)
    _refuse([] if why_layout else problems)
    if why_layout:
        layout = job.layout
        _refuse(check_traps(experiment, layout))
        reasons = (*(reason for reason in reasons if reason.what in {"ranks_per_node", "nodes"}), *why_layout)
    estimates = estimate(experiment, job, calibration)
    refuse_what_cannot_fit(job, estimates.memory, accept)
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
        memory=estimates.memory,
        throughput=estimates.throughput,
        cost=estimates.cost,
        warnings=estimates.warnings,
    )


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise PlanRefused("; ".join(problem.message for problem in problems))


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
