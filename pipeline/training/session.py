"""One rank's training, put together phase by phase from the experiment and the plan."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import torch.distributed as dist

from pipeline.datasets.opening import describe_data, open_data
from pipeline.placement.certificate import Moment
from pipeline.training import loop, megatron, process_group
from pipeline.training.backend import Backend, describe, gpu_bus_id
from pipeline.training.context import WorkerContext
from pipeline.training.data import RunData, samplers, shape_of
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
        data = _open_data(experiment, plan.layout, position, backend, sink if reports else None)
    loop.train(
        loop.Trainer(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            sampler=data.train,
            validation=loop.Validation.of(data.validation, experiment.recipe),
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
) -> RunData:
    opened = open_data(experiment.data, shape_of(experiment))
    process_group.require_same_data(opened.digest, backend.device)
    if sink is not None:
        for message in opened.warnings:
            sink.emit("warning", {"message": message})
        sink.emit("data", describe_data(opened, experiment.recipe))
    return samplers(
        opened,
        experiment,
        layout,
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
