"""Runs `himori probe` on nodes of a Slurm cluster, one task a node of one job, and gathers what they answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hostlist

from launchers.slurm_commands import run_command, split_rows
from pipeline.errors import ClusterError, UserError
from pipeline.types import Cluster, GpuDialect

TIME_LIMIT_MIN = 5
_MARK = "himori-probe-of"
_UNUSABLE = ("down", "drain", "fail", "unknown", "maint", "reboot", "power", "inval", "no_respond", "*")
"""In the states that sinfo prints; `*` marks a node that doesn't answer."""


Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """Which nodes to look at, and what to ask the scheduler for on each."""

    nodelist: str | None
    """Slurm's own form, `n[1-4,7]`; None: any `count` nodes."""
    count: int
    gpus: int
    """On each node; 0: none are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What came back."""

    documents: Mapping[str, Mapping[str, Any]]
    """`himori probe --json` of each node that answered."""
    failure: str | None
    """What Slurm or a node said if not all went well."""


def probe_nodes(cluster: Cluster, request: NodeRequest, *, arguments: Sequence[str], say: Say) -> Answers:
    """Runs `himori probe --json ARGUMENTS` in a job; waits until all its nodes have answered.

    `say` is told what people should know meanwhile. Raises UserError for nodes that aren't there and ClusterError
    for nodes that can't be used, or when Slurm refuses.
    """
    if request.nodelist is not None:
        _check_nodes(request.nodelist)
    command = srun_command(cluster, request, arguments=arguments)
    printed, complaints, code = _run(command, say)
    documents = dict(_documents(printed))
    if not documents:
        raise ClusterError(f"no node was probed: {_reason(complaints) or f'srun ended with exit code {code}'}")
    missing = request.count - len(documents)
    failure = (_reason(complaints) or f"exit code {code}") if code or missing else None
    return Answers(documents=dict(sorted(documents.items(), key=_in_order)), failure=failure)


def expand(nodelist: str) -> list[str]:
    """Names of the nodes in Slurm's form `n[1-4,7]`; raises UserError when it isn't one."""
    try:
        names = [str(name) for name in hostlist.expand_hostlist(nodelist)]
    except hostlist.BadHostlist as error:
        raise UserError(f"nodelist={nodelist}: can't be read ({error}); the form is n1,n2 or n[1-4,7]") from error
    if not names:
        raise UserError("nodelist=: names no node; the form is n1,n2 or n[1-4,7]")
    return names


def srun_command(cluster: Cluster, request: NodeRequest, *, arguments: Sequence[str]) -> list[str]:
    """The whole command: nodes are asked for as runs on this cluster ask for them."""
    options = {
        "job-name": "himori-probe",
        "nodes": str(request.count),
        "ntasks-per-node": "1",
        "time": str(TIME_LIMIT_MIN),
        "cpu-bind": "none",
        "mem-bind": "none",
        "partition": cluster.partition or "",
        "account": cluster.account or "",
        "qos": cluster.qos or "",
        "nodelist": request.nodelist or "",
        **_gpu_option(cluster, request.gpus),
    }
    given = {key: value for key, value in (options | cluster.sbatch).items() if value or key in cluster.sbatch}
    flags = ["--label", *(["--exclusive"] if cluster.exclusive else [])]
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in sorted(given.items())]
    program = [cluster.python or sys.executable, "-P", "-m", "pipeline", "probe", "--json", *arguments]
    return ["srun", *flags, *words, "bash", "-c", _script(cluster.setup), "himori-probe", *program]


def _gpu_option(cluster: Cluster, gpus: int) -> dict[str, str]:
    if not (gpus and cluster.request_gpus):
        return {}
    match cluster.gpu_dialect:
        case GpuDialect.gpus_per_node:
            return {"gpus-per-node": str(gpus)}
        case GpuDialect.gres:
            return {"gres": f"gpu:{gpus}"}


def _script(setup: Sequence[str]) -> str:
    """What `setup` prints comes before the mark and is dropped."""
    return "\n".join(["export PYTHONSAFEPATH=1", *setup, f'echo "{_MARK} $SLURMD_NODENAME"', 'exec "$@"'])


# --------------------------------------------------------------------------- the job


def _run(command: Sequence[str], say: Say) -> tuple[str, list[str], int]:
    """What srun printed, what it complained of, and its exit code; Ctrl-C reaches srun too, which ends the job."""
    complaints: list[str] = []
    try:
        with subprocess.Popen(
            command,
            env=_outside_of_jobs(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as srun:
            listener = threading.Thread(target=_listen, args=(srun.stderr, complaints, say))
            listener.start()
            assert srun.stdout is not None
            printed = srun.stdout.read()
            listener.join()
    except FileNotFoundError as error:
        raise ClusterError("srun is not on PATH; load Slurm's commands") from error
    return printed, complaints, srun.returncode


def _listen(stream: Iterable[str], complaints: list[str], say: Say) -> None:
    for line in stream:
        text = line.strip()
        if waiting := re.search(r"job (\d+) queued and waiting", text):
            say(f"job {waiting[1]} waits for its nodes; Ctrl-C takes it back")
        elif text:
            complaints.append(text)


def _outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Inside of a job srun would take that job's nodes, and its wishes for ours."""
    inner = ("SLURM_", "SBATCH_", "SRUN_")
    return {name: value for name, value in environ.items() if not name.startswith(inner) or name == "SLURM_CONF"}


def _reason(complaints: Sequence[str]) -> str:
    """The line that says most: what a node's himori said, what Slurm refused, what else a node printed."""
    from_himori = [line for line in complaints if "himori: " in line]
    from_slurm = [line for line in complaints if "error: " in line and "Exited with exit code" not in line]
    from_nodes = [line for line in complaints if re.match(r"\d+: ", line)]
    line = next(iter(from_himori or from_slurm or from_nodes or complaints[-1:]), "")
    return re.sub(r"^(\d+: )?(srun: )?(error: )?(himori: )?", "", line)


# --------------------------------------------------------------------------- answers


def _documents(printed: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each node's document, from lines that srun marked with the number of the task."""
    lines: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if match := re.fullmatch(r"\s*(\d+): ?(.*)", line):
            lines.setdefault(match[1], []).append(match[2])
    for task in lines.values():
        text = "\n".join(task)
        if found := re.search(rf"^{_MARK} (\S+)\n(.*)", text, re.M | re.S):
            try:
                yield found[1], json.loads(found[2])
            except ValueError:
                continue


def _in_order(item: tuple[str, object]) -> list[tuple[int, str]]:
    """n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", item[0])]


# --------------------------------------------------------------------------- nodes


def _check_nodes(nodelist: str) -> None:
    """Slurm would let the job wait for ever for a node that is down."""
    states = _states()
    wanted = expand(nodelist)
    if unknown := [name for name in wanted if name not in states]:
        there = hostlist.collect_hostlist(states)
        raise UserError(f"nodelist={nodelist}: no node {', '.join(unknown)}; the cluster has {there}")
    unusable = [name for name in wanted if any(word in states[name] for word in _UNUSABLE)]
    if unusable:
        said = "; ".join(f"{name} is {states[name]}" for name in unusable)
        raise ClusterError(f"{said}: leave {'it' if len(unusable) == 1 else 'them'} out of nodelist=")


def _states() -> dict[str, str]:
    """State of every node and why it is so."""
    rows = split_rows(run_command(["sinfo", "--noheader", "--Node", "--format", "%N|%T|%E"]))
    return {row[0]: row[1] if row[2] == "none" else f"{row[1]} ({'|'.join(row[2:])})" for row in rows if len(row) > 2}
