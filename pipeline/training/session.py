"""One rank's training, put together phase by phase from the experiment and the plan."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import torch.distributed as dist

from pipeline.placement.certificate import Moment
from pipeline.training import loop, megatron, process_group
from pipeline.training.backend import Backend, describe, gpu_bus_id
from pipeline.training.context import WorkerContext
from pipeline.training.corpus import read_corpus, require_samples
from pipeline.training.data import Sampler
from pipeline.training.events import EventSink, phase
from pipeline.training.observation import report_placement
from pipeline.types import Experiment, Layout, Plan


def train(experiment: Experiment, plan: Plan, context: WorkerContext, backend: Backend, sink: EventSink) -> None:
    """Joins the other ranks and trains for all steps of the recipe."""
    reports = context.rank == 0
    if reports:
        sink.emit("environment", _environment(backend))
    with phase(sink, "process_group"):
        process_group.join(context, backend, timeout_s=experiment.cluster.rendezvous_timeout_s)
        position = megatron.initialize_ranks(
            plan.layout, backend, seed=experiment.seed, timeout_min=process_group.COLLECTIVE_TIMEOUT_MIN
        )
    with phase(sink, "model"):
        model = megatron.build_model(experiment, plan, backend)
        optimizer = megatron.build_optimizer(model, experiment)
        schedule = megatron.build_schedule(optimizer, experiment.optimizer, experiment.recipe.steps)
    report_placement(context, sink, Moment.model, gpu=gpu_bus_id(backend))
    with phase(sink, "data"):
        sampler = _open_data(experiment, plan.layout, position, backend, sink if reports else None)
    loop.train(
        loop.Trainer(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            sampler=sampler,
            steps=experiment.recipe.steps,
            sink=sink,
            reports=reports,
        )
    )
    dist.destroy_process_group()


def _open_data(
    experiment: Experiment,
    layout: Layout,
    position: megatron.Position,
    backend: Backend,
    sink: EventSink | None,
) -> Sampler:
    corpus = read_corpus(experiment.data.path)
    skipped = corpus.describe_skipped()
    if sink is not None and skipped is not None:
        sink.emit("warning", {"message": skipped})
    sequence_length = experiment.recipe.sequence_length
    samples = require_samples(corpus, sequence_length=sequence_length, vocab_size=experiment.model.vocab_size)
    process_group.require_same_corpus(corpus, backend.device)
    return Sampler(
        corpus=corpus.tokens,
        samples=samples,
        sequence_length=sequence_length,
        seed=experiment.seed,
        layout=layout,
        dp_rank=position.dp_rank,
        cp_rank=position.cp_rank,
        device=backend.device,
    )


def _environment(backend: Backend) -> dict[str, object]:
    """Versions this rank computes with."""
    versions = {"python": platform.python_version(), "megatron_core": megatron.version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["transformer_engine"] = importlib.metadata.version("transformer-engine")
    return {**versions, **describe(backend)}
