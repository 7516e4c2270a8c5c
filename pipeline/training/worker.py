"""The life of one rank's process: from its environment to its exit code."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipeline.errors import HimoriError, RunNotFound, UserError
from pipeline.placement.certificate import Moment
from pipeline.rundir import RunDir
from pipeline.training.context import WorkerContext, read_context
from pipeline.training.events import EventSink, PrintedEvents, open_sink, phase
from pipeline.training.failures import RunFailed
from pipeline.training.notice import Notice, show_stacks_into
from pipeline.training.observation import report_placement
from pipeline.training.support import refuse_broken_rules, refuse_unsupported
from pipeline.types import Experiment, Plan

if TYPE_CHECKING:
    from pipeline.training.backend import Backend

_EVENTS_TIMEOUT_S = 5.0


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Runs one rank to its end and leaves the process with its exit code."""
    code = _run(arguments, environ)
    sys.stdout.flush()
    sys.stderr.flush()
    # The usual way out joins the threads of process groups, which wait for peers that may never answer; the
    # supervisor has to see the end at once to stop those peers. Helper processes, such as the one through which
    # Megatron-Core hands on the results of a checkpoint's writers, would stay behind.
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(code)


def _run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    label = "worker"
    sink: EventSink = PrintedEvents()
    try:
        context = read_context(environ)
        label = f"rank {context.rank} on {context.node}"
        run = _run_dir(arguments)
        sink = open_sink(context)
        work(run, context, sink)
    except HimoriError as error:
        print(f"himori: {label}: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sink.close(_EVENTS_TIMEOUT_S)
    return 0


def _run_dir(arguments: Sequence[str]) -> RunDir:
    if len(arguments) != 1:
        raise UserError(f"one argument is needed, the run directory; got {list(arguments)}")
    run = RunDir(Path(arguments[0]))
    if not run.config_file.is_file():
        raise RunNotFound(f"{run.path} is no run directory that this node can see; every node needs run_root")
    return run


def work(run: RunDir, context: WorkerContext, sink: EventSink) -> None:
    """Trains as the run directory says; a rehearsal ends once the rank has seen its place."""
    notice = Notice()
    notice.listen()
    show_stacks_into(run.attempt(context.attempt).stacks(context.rank))
    # Before torch is there: what it starts inherits the place found here.
    report_placement(context, sink, Moment.start)
    experiment, plan = run.read_resumed_experiment(), run.read_plan()
    if context.world_size != plan.layout.ranks:
        raise RunFailed(f"the plan is for {plan.layout.ranks} ranks, WORLD_SIZE is {context.world_size}")
    if experiment.rehearsal:
        return
    refuse_unsupported(experiment, plan.layout)
    refuse_broken_rules(experiment, plan.layout)
    ignore_foreign_warnings()
    with phase(sink, "imports"), _named_when_missing():
        backend = _open_backend(experiment, plan, context)
        # Only now: on a CPU, Megatron-Core can't be imported as it is before the backend is open.
        from pipeline.training import session
    session.train(run, experiment, plan, context, backend, sink, notice)


@contextlib.contextmanager
def _named_when_missing() -> Iterator[None]:
    """Planning and submitting need no torch, so an environment that can do those may still lack it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed for {sys.executable}; install himori[train] there, with a GPU himori[gpu]"
        ) from error


def ignore_foreign_warnings() -> None:
    """Drops what Megatron-Core and torch say to their own developers, on every rank."""
    # Optional packages that aren't there, deprecated defaults.
    warnings.filterwarnings("ignore", module="megatron")
    # Collectives that Megatron-Core calls by names that newer torch deprecates.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # The type in which Megatron-Core hands its shards over to be saved.
    warnings.filterwarnings("ignore", category=FutureWarning, message="Please use DTensor")


def _open_backend(experiment: Experiment, plan: Plan, context: WorkerContext) -> Backend:
    if plan.gpus_per_node > 0:
        from pipeline.training.backend import gpu_backend

        return gpu_backend(context.local_rank, experiment)
    from pipeline.training import cpu_backend

    return cpu_backend.install()
