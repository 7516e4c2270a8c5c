"""The environment of a worker: the only place that sets a variable for it, each with its reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launchers.messages import Start
from launchers.own_place import BOUND_CPUS
from launchers.task import Task
from pipeline.errors import UserError
from pipeline.hardware.topology import format_ids
from pipeline.placement.binding import Binding
from pipeline.placement.environment import EnvVar, binding_environment, scrubbed_variables
from pipeline.rundir import AttemptDir
from pipeline.types import Profile, ProfileKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker was put."""

    binding: Binding | None
    """None: it runs unbound."""
    digest: str
    """Of the node's plan; empty: there is none, or the rank doesn't follow it."""
    threads: int
    """For an unbound worker: its share of the CPUs."""


def worker_variables(
    task: Task, start: Start, *, attempt: int, events: Path, place: Place, listen_fd: int | None
) -> tuple[EnvVar, ...]:
    """What a worker is told through its environment."""
    variables = [
        EnvVar("RANK", str(task.rank), "which rank this process is"),
        EnvVar("WORLD_SIZE", str(task.ranks), "how many ranks there are"),
        EnvVar("LOCAL_RANK", str(task.local_rank), "which rank of its node"),
        EnvVar("LOCAL_WORLD_SIZE", str(task.local_ranks), "how many ranks its node has"),
        EnvVar("MASTER_ADDR", start.address, "host of rank 0, as its supervisor reported it"),
        EnvVar("MASTER_PORT", str(start.port), "port that rank 0's supervisor already holds open"),
        EnvVar("HIMORI_ATTEMPT", str(attempt), "which attempt of the run"),
        EnvVar("HIMORI_NODE", task.node, "name of the node in journals and logs"),
        EnvVar("HIMORI_EVENTS", str(events), "socket of the node's leader, which writes the journal"),
        EnvVar("PYTHONUNBUFFERED", "1", "a line reaches the log when it is printed, and before a crash"),
        EnvVar("TORCH_CPP_LOG_LEVEL", "ERROR", "gloo and c10d warn about host names at every start"),
        *_place_variables(place),
    ]
    if task.nodes == 1:
        variables.append(EnvVar("GLOO_SOCKET_IFNAME", "lo", "one node: its host name need not resolve"))
    if listen_fd is not None:
        variables.append(EnvVar("HIMORI_LISTEN_FD", str(listen_fd), "the open socket of MASTER_PORT, kept for rank 0"))
    return tuple(variables)


def _place_variables(place: Place) -> Iterator[EnvVar]:
    if place.binding is None:
        yield EnvVar("OMP_NUM_THREADS", str(place.threads), "no more threads than the rank has CPUs")
        return
    yield EnvVar("HIMORI_BINDING", place.digest, "which plan the rank follows")
    yield EnvVar(BOUND_CPUS, format_ids(place.binding.cpus), "tells a run inside of this one that it was narrowed")
    yield from binding_environment(place.binding)


def deterministic_variables() -> tuple[EnvVar, ...]:
    """What kernels and collectives need to give the same bits every time."""
    return (
        EnvVar("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS is only deterministic with workspaces of fixed size"),
        EnvVar("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "Transformer Engine's attention then sums in a fixed order"),
        EnvVar("NCCL_ALGO", "Ring", "one order of sums, whatever NCCL's tuner would pick at this size"),
    )


def profiler_prefix(profile: Profile, attempt: AttemptDir, task: Task) -> tuple[str, ...]:
    """The command a worker is started under; raises UserError where it is asked for and not on this node."""
    if profile.kind is not ProfileKind.nsys or task.rank not in profile.ranks:
        return ()
    found = shutil.which("nsys")
    if found is None:
        raise UserError(
            f"profile=nsys: nsys is not on PATH of node {task.node}; load it with cluster.setup or use profile=torch"
        )
    attempt.profile_dir.mkdir(parents=True, exist_ok=True)
    output = str(attempt.profile_dir / f"nsys-rank{task.rank}")
    window = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none")
    return (found, "profile", "--trace=cuda,nvtx", *window, "--force-overwrite=true", f"--output={output}")


_OURS = ("HIMORI_ALLOWED_CPUS", "HIMORI_APPLIED", "HIMORI_BINDING", BOUND_CPUS)
"""What a run around this one may have left: another worker's place."""


def merged(environ: Mapping[str, str], variables: tuple[EnvVar, ...]) -> dict[str, str]:
    """The inherited environment without what would undo a binding, and with ours on top."""
    dropped = {*_OURS, *(scrub.name for scrub in scrubbed_variables(environ))}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, **{variable.name: variable.value for variable in variables}}
