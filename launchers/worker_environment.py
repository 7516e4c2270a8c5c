"""The environment of a worker: the only place that sets a variable for it, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launchers.messages import Start
from launchers.task import Task


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable and why it is set."""

    name: str
    value: str
    reason: str


def worker_variables(
    task: Task, start: Start, *, attempt: int, events: Path, threads: int, listen_fd: int | None
) -> tuple[Variable, ...]:
    """What a worker is told through its environment; `threads` is its share of CPUs."""
    variables = [
        Variable("RANK", str(task.rank), "which rank this process is"),
        Variable("WORLD_SIZE", str(task.ranks), "how many ranks there are"),
        Variable("LOCAL_RANK", str(task.local_rank), "which rank of its node"),
        Variable("LOCAL_WORLD_SIZE", str(task.local_ranks), "how many ranks its node has"),
        Variable("MASTER_ADDR", start.address, "host of rank 0, as its supervisor reported it"),
        Variable("MASTER_PORT", str(start.port), "port that rank 0's supervisor already holds open"),
        Variable("HIMORI_ATTEMPT", str(attempt), "which attempt of the run"),
        Variable("HIMORI_NODE", task.node, "name of the node in journals and logs"),
        Variable("HIMORI_EVENTS", str(events), "socket of the node's leader, which writes the journal"),
        Variable("OMP_NUM_THREADS", str(threads), "no more threads than the rank has CPUs"),
        Variable("PYTHONUNBUFFERED", "1", "a line reaches the log when it is printed, and before a crash"),
        Variable("TORCH_CPP_LOG_LEVEL", "ERROR", "gloo and c10d warn about host names at every start"),
    ]
    if task.nodes == 1:
        variables.append(Variable("GLOO_SOCKET_IFNAME", "lo", "one node: its host name need not resolve"))
    if listen_fd is not None:
        variables.append(
            Variable("HIMORI_LISTEN_FD", str(listen_fd), "the open socket of MASTER_PORT, kept for rank 0")
        )
    return tuple(variables)


def merged(environ: Mapping[str, str], variables: tuple[Variable, ...]) -> dict[str, str]:
    """The inherited environment with ours on top."""
    return {**environ, **{variable.name: variable.value for variable in variables}}
