"""One rank's training, put together phase by phase from the experiment and the plan."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import torch
import torch.distributed as dist

from pipeline.datasets.opening import describe_data, open_data
from pipeline.placement.certificate import Moment
from pipeline.rundir import RunDir
from pipeline.training import loop, megatron, process_group
from pipeline.training.backend import Backend, describe, gpu_bus_id
from pipeline.training.checkpoint import Checkpoints, Trained
from pipeline.training.context import WorkerContext
from pipeline.training.data import RunData, samplers, shape_of
from pipeline.training.events import EventSink, phase
from pipeline.training.guard import NumericsGuard
from pipeline.training.heartbeat import Heartbeat
from pipeline.training.notice import Notice
from pipeline.training.observation import report_placement
from pipeline.training.profiling import Profiler
from pipeline.types import Experiment, Layout, Plan


def train(
    run: RunDir,
    experiment: Experiment,
    plan: Plan,
    context: WorkerContext,
    backend: Backend,
    sink: EventSink,
    notice: Notice,
) -> None:
    """Joins the other ranks, goes on from the newest checkpoint and trains for the rest of the recipe's steps."""
    reports = context.rank == 0
    if reports:
        sink.emit("environment", _environment(backend))
    # Here and not at import: it is torch's state for the whole process.
    torch.use_deterministic_algorithms(experiment.recipe.deterministic)
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
        data = _open_data(experiment, plan.layout, position, backend, sink, reports=reports)
    checkpoints = Checkpoints(
        run,
        Trained(model=model, optimizer=optimizer, schedule=schedule),
        experiment=experiment,
        sampler=data.train,
        layout=plan.layout,
        attempt=context.attempt,
        device=backend.device,
        sink=sink,
    )
    with phase(sink, "checkpoint"):
        done = checkpoints.resume()
    loop.train(
        loop.Trainer(
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            sampler=checkpoints.sampler,
            validation=loop.Validation.of(data.validation, experiment.recipe),
            first_step=done + 1,
            steps=experiment.recipe.steps,
            sink=sink,
            checkpoints=checkpoints,
            guard=NumericsGuard(experiment.guard, checkpoints.sampler, sink),
            profiler=Profiler(
                experiment.profile,
                rank=context.rank,
                folder=run.attempt(context.attempt).profile_dir,
                device=backend.device,
                sink=sink,
                configs=megatron.timed_configs(model, optimizer),
            ),
            heartbeat=Heartbeat(sink, least_s=experiment.cluster.hang_least_s),
            notice=notice,
            reports=reports,
        )
    )
    dist.destroy_process_group()


def _open_data(
    experiment: Experiment,
    layout: Layout,
    position: megatron.Position,
    backend: Backend,
    sink: EventSink,
    *,
    reports: bool,
) -> RunData:
    opened = open_data(experiment.data, shape_of(experiment))
    process_group.require_same_data(opened.digest, backend.device)
    for copy in opened.staged:
        if copy.seconds:
            speed = copy.bytes / copy.seconds / 1e9
            told = {"copy": copy.prefix, "bytes": copy.bytes, "seconds": copy.seconds, "gb_per_s": speed}
            sink.emit("staging", told)
    if reports:
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
