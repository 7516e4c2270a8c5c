"""Starts real worker processes over gloo on this machine and collects what they say."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.rundir import RunDir, write_json, write_yaml
from pipeline.types import (
    Cluster,
    DataSpec,
    DType,
    Experiment,
    HardwareProfile,
    LauncherKind,
    Layout,
    ModelSpec,
    OptimizerSpec,
    Plan,
    Precision,
    Recipe,
    Tracking,
)

WORKER = ("-P", "-m", "pipeline.training")
TIMEOUT_S = 240.0

LOSS_TOLERANCE = 1e-6
"""Relative; the largest gap measured between any layout below and one rank was 7e-8 (fp32, 6 steps)."""
NORM_TOLERANCE = 3e-6
"""Relative; the largest gap measured was 3e-7."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What one rank left behind."""

    exit_code: int
    events: list[tuple[str, dict[str, object]]]
    output: str
    errors: str

    def of_kind(self, kind: str) -> list[dict[str, object]]:
        """Data of all events of a kind, in order."""
        return [data for name, data in self.events if name == kind]

    def metric(self, name: str) -> list[float]:
        """A metric's values, step by step."""
        return [event["values"][name] for event in self.of_kind("metrics") if name in event["values"]]


def parity_gaps(ended: Ended, reference: Ended) -> list[str]:
    """What differs, step by step, by more than the tolerances; empty when the two trained alike."""
    tolerances = {"train/loss": LOSS_TOLERANCE, "train/grad_norm": NORM_TOLERANCE}
    return [
        f"step {step}: {name} {found!r}, reference {wanted!r}"
        for name, tolerance in tolerances.items()
        for step, (found, wanted) in enumerate(zip(ended.metric(name), reference.metric(name), strict=True), start=1)
        if not math.isclose(found, wanted, rel_tol=tolerance)
    ]


def tiny_experiment(*, steps: int = 4) -> Experiment:
    """A model of some 20 k parameters: GQA, SwiGLU, RMSNorm, two layers."""
    return Experiment(
        name="tiny",
        hardware=HardwareProfile(name="cpu"),
        cluster=Cluster(name="local", launcher=LauncherKind.local, rendezvous_timeout_s=200.0),
        model=ModelSpec(
            name="tiny",
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=64,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=256,
            max_sequence_length=64,
        ),
        precision=Precision(name="fp32", dtype=DType.fp32),
        optimizer=OptimizerSpec(name="adamw", lr=4e-3, min_lr=4e-4, warmup_steps=2),
        recipe=Recipe(name="tiny", steps=steps, sequence_length=32, micro_batch=2, global_batch=8),
        data=DataSpec(name="stdlib"),
        tracking=Tracking(name="none"),
    )


def plan_for(experiment: Experiment, *, tp: int = 1, pp: int = 1, cp: int = 1, dp: int = 1, **further: Any) -> Plan:
    """A plan on one node with this layout; what workers don't read is left at zero.

    `further`: other fields of Layout.
    """
    recipe = experiment.recipe
    return Plan(
        experiment=experiment.name,
        layout=Layout(
            nodes=1,
            ranks_per_node=tp * pp * cp * dp,
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            micro_batch=recipe.micro_batch,
            global_batch=recipe.global_batch,
            num_microbatches=recipe.global_batch // (recipe.micro_batch * dp),
            **{"sequence_parallel": False, **further},
        ),
        gpus_per_node=0,
        cpus_per_rank=None,
        parameters=0,
        padded_vocab_size=experiment.model.vocab_size,
        tokens_per_step=0,
        total_tokens=0,
        reasons=(),
    )


def write_run(folder: Path, experiment: Experiment, plan: Plan) -> RunDir:
    """A run directory as far as workers need it."""
    run = RunDir(folder)
    write_yaml(run.config_file, experiment)
    write_json(run.plan_file, plan)
    return run


def run_workers(
    run: RunDir,
    *,
    ranks: int,
    program: Sequence[str] = WORKER,
    take_over_port: bool = True,
    absent: Sequence[int] = (),
    folders: Sequence[Path] | None = None,
    further: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Runs all ranks but the absent ones to their end.

    `take_over_port`: rank 0 is handed a listening socket, as by the supervisor. `folders`: working directory of
    each rank. `further`: more environment variables of all ranks.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, TemporaryDirectory() as logs:
        port = server.getsockname()[1]
        listen_fd = server.fileno() if take_over_port else None
        if listen_fd is None:
            server.close()
        workers = [
            _Worker(
                [sys.executable, *program, str(run.path)],
                environ={**_environment(rank, ranks, port), **(further or {})},
                listen_fd=listen_fd if rank == 0 else None,
                folder=folders[rank] if folders else None,
                log=Path(logs, str(rank)),
            )
            for rank in range(ranks)
            if rank not in absent
        ]
        server.close()
        return _wait_all(workers)


class _Worker:
    def __init__(
        self,
        command: list[str],
        *,
        environ: dict[str, str],
        listen_fd: int | None,
        folder: Path | None,
        log: Path,
    ) -> None:
        inherited = () if listen_fd is None else (listen_fd,)
        handed = {} if listen_fd is None else {"HIMORI_LISTEN_FD": str(listen_fd)}
        self.output, self.errors = log.with_suffix(".out"), log.with_suffix(".err")
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, env={**environ, **handed}, pass_fds=inherited, cwd=folder, stdout=output, stderr=errors
            )

    def end(self) -> Ended:
        output, errors = (path.read_text(errors="replace") for path in (self.output, self.errors))
        lines = (line.split(" ", 2) for line in output.splitlines() if line.startswith("event "))
        return Ended(
            exit_code=self.process.returncode,
            events=[(kind, json.loads(data)) for _, kind, data in lines],
            output=output,
            errors=errors,
        )


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "HIMORI_ATTEMPT": "1",
        "HIMORI_NODE": "testnode",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _wait_all(workers: list[_Worker]) -> list[Ended]:
    try:
        for worker in workers:
            worker.process.wait(TIMEOUT_S)
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
    return [worker.end() for worker in workers]
