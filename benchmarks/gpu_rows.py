"""The GPU benchmark: himori's own worker against Megatron-LM's training loop, row by row and turn by turn.

Each measurement is a process of its own, forked from one that has imported everything, so that a row costs the model
and its steps only. A and B of a row take turns on the same GPU. Writes one JSON line a measurement, for table.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.__main__ import parser
from pipeline.commands.request import build_request, write_run
from pipeline.rundir import RunDir, create_run_dir
from pipeline.training.context import WorkerContext

ROWS = {
    "bf16 mbs1": ("precision=bf16", "recipe.micro_batch=1"),
    "bf16 mbs4": ("precision=bf16", "recipe.micro_batch=4"),
    "fp8 delayed mbs4": ("precision=fp8", "precision.low_precision=fp8_delayed", "recipe.micro_batch=4"),
    "fp8 current mbs4": ("precision=fp8", "precision.low_precision=fp8_current", "recipe.micro_batch=4"),
    "fp8 blockwise mbs4": ("precision=fp8", "precision.low_precision=fp8_blockwise", "recipe.micro_batch=4"),
}
LINEAR = "techniques.cross_entropy=linear"
GAINS: dict[str, dict[str, tuple[str, ...]]] = {
    "bf16 mbs4": {"linear loss": (LINEAR,), "linear loss, mbs8": (LINEAR, "recipe.micro_batch=8")},
    "fp8 delayed mbs4": {"linear loss": (LINEAR,), "linear loss, mbs8": (LINEAR, "recipe.micro_batch=8")},
    "bf16 mbs1": {"linear loss": (LINEAR,)},
}
"""What planning adds to a row, each shown alone."""
COMMON = (
    "hardware=dgx_h200",
    "model=llama3_2_1b",
    "data.kind=mock",
    "recipe.sequence_length=8192",
    "recipe.global_batch=8",
    "ranks=1",
    "cluster.ranks_per_node=1",
    "layout.tp=1",
    "optimizer.warmup_steps=0",
)
"""The shape of Llama 3.2 1B, 65,536 tokens a step, one GPU."""


class Collected:
    """An event sink that keeps what a rank says."""

    def __init__(self) -> None:
        self.step_s: list[float] = []
        self.phases_s: dict[str, float] = {}

    def emit(self, kind: str, data: Mapping[str, Any]) -> None:
        """Keeps step times and phases."""
        if kind == "metrics" and "throughput/step_time_s" in data["values"]:
            self.step_s.append(data["values"]["throughput/step_time_s"])
        elif kind == "phase":
            self.phases_s[data["name"]] = data["seconds"]
        elif kind == "warning":
            print(data, file=sys.stderr)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002
        """Nothing is ever on its way."""
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One side of a row."""

    name: str
    overrides: tuple[str, ...]
    measure: Callable[[RunDir, int], dict[str, Any]]


def measure_himori(run: RunDir, port: int) -> dict[str, Any]:
    """What the worker of a job does, in this process."""
    import torch

    from pipeline.training.worker import work

    began, sink = time.perf_counter(), Collected()
    work(run, _context(port), sink)
    return {
        "step_s": sink.step_s,
        "phases_s": sink.phases_s,
        "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "total_s": time.perf_counter() - began,
    }


def measure_reference(run: RunDir, port: int) -> dict[str, Any]:
    """Megatron-LM's loop, in this process."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    import megatron_reference

    return megatron_reference.run(run.read_experiment(), run.read_plan())


def _context(port: int) -> WorkerContext:
    return WorkerContext(
        rank=0,
        world_size=1,
        local_rank=0,
        master_addr="127.0.0.1",
        master_port=port,
        attempt=1,
        node="bench",
        events=None,
        listen_fd=None,
    )


def in_child(arm: Arm, steps: int, port: int, folder: Path) -> dict[str, Any]:
    """Measures one arm once in a forked process; `error` says why there is nothing."""
    overrides = [*COMMON, *arm.overrides, f"recipe.steps={steps}", f"run_root={folder}", "name=bench"]
    request = build_request(parser().parse_args(["submit", *overrides]))
    run = create_run_dir(folder, "bench")
    write_run(request, run)
    answer = folder / f"{run.run_id}.json"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            answer.write_text(json.dumps(arm.measure(run, port)), encoding="utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not answer.is_file():
        return {"error": f"exit status {os.waitstatus_to_exitcode(status)}"}
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found | {"planned": _planned(request.plan)}


def _planned(plan: Any) -> dict[str, float | None]:
    throughput, memory = plan.throughput, plan.memory
    return {
        "tokens_per_s": throughput.tokens_per_s.p50 if throughput else None,
        "memory_gib": max(stage.point_gib for stage in memory.stages) if memory else None,
    }


def arms_of(row: str) -> list[Arm]:
    """The two sides of a row, and what planning adds to ours."""
    overrides = ROWS[row]
    arms = [
        Arm(name="himori", overrides=overrides, measure=measure_himori),
        Arm(name="megatron-lm", overrides=overrides, measure=measure_reference),
    ]
    for name, changes in GAINS.get(row, {}).items():
        # The later of two overrides of a key would be refused, so what changes is left out of the row's own.
        kept = tuple(one for one in overrides if one.split("=")[0] not in {change.split("=")[0] for change in changes})
        arms.append(Arm(name=name, overrides=(*kept, *changes), measure=measure_himori))
    return arms


def warm_up() -> None:
    """Imports all that children need; CUDA isn't touched."""
    import megatron_reference  # noqa: F401
    import transformer_engine.pytorch  # noqa: F401

    from pipeline.training import session  # noqa: F401


def main() -> None:
    """Measures the chosen rows in turns until the time is over."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--row", action="append", choices=list(ROWS), help="only this row; may be repeated")
    options.add_argument("--only", action="append", default=[], metavar="ARM", help="only these arms")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--steps", type=int, default=9)
    options.add_argument("--limit-s", type=float, default=1800.0, help="start no measurement after this long")
    options.add_argument("-o", "--output", type=Path, required=True, help="JSON lines")
    arguments = options.parse_args()
    began, port = time.monotonic(), 29600
    folder = arguments.output.parent / "bench-runs"
    folder.mkdir(parents=True, exist_ok=True)
    warm_up()
    print(f"imports: {time.monotonic() - began:.1f} s", file=sys.stderr)
    for turn in range(arguments.turns):
        for row in arguments.row or ROWS:
            for arm in arms_of(row):
                if arguments.only and arm.name not in arguments.only:
                    continue
                if time.monotonic() - began > arguments.limit_s:
                    print(f"time is over before turn {turn + 1} of {row}, {arm.name}", file=sys.stderr)
                    return
                port += 1
                found = {"row": row, "arm": arm.name, "turn": turn + 1}
                found |= in_child(arm, arguments.steps, port, folder)
                with arguments.output.open("a", encoding="utf-8") as out:
                    print(json.dumps(found), file=out)
                median = sorted(found["step_s"][3:])[len(found["step_s"][3:]) // 2] if found.get("step_s") else None
                rate = f"{65536 / median:,.0f} tokens/s" if median else found.get("error")
                print(f"{time.monotonic() - began:6.1f} s  {row}  {arm.name}: {rate}", file=sys.stderr)


if __name__ == "__main__":
    main()
