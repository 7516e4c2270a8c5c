"""Run directories with a journal that says what a test wants, and published rows for every purpose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.__main__ import parser
from pipeline.analysis.facts import Origin, RunFacts
from pipeline.analysis.runs import read_run
from pipeline.analysis.specs import gpu_named, model_named
from pipeline.commands.request import Request, build_request, write_run
from pipeline.model_math import flops_per_token
from pipeline.rundir import RunDir, create_run_dir, write_json
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.tracking.telemetry.readings import KIND, GpuReading, HostReading, Sample, to_data
from pipeline.types import End, RunState

H100 = ("hardware=dgx_h100", "model=llama3_8b", "precision=bf16", "recipe.sequence_length=4096",
        "recipe.global_batch=64", "recipe.micro_batch=1", "layout.tp=4")  # fmt: skip
B200 = ("hardware=dgx_b200", *H100[1:])
PHASE_S = 5.0


@cache
def request_of(overrides: tuple[str, ...]) -> Request:
    """The request of some overrides; composing is what takes time."""
    return build_request(parser().parse_args(["plan", *overrides]))


def make_run(
    root: Path,
    overrides: Sequence[str],
    *,
    name: str = "made",
    seed: int = 1,
    step_s: float = 1.0,
    steps: int = 80,
    loss_scale: float = 1.0,
    state: RunState | None = RunState.finished,
    node: str = "n1",
) -> RunDir:
    """A run of equal steady steps after three slow ones; its loss falls as 4 * scale * step^-0.2."""
    request = request_of(tuple(overrides))
    experiment = dataclasses.replace(request.experiment, seed=seed, name=name, run_root=str(root))
    run = create_run_dir(root, name)
    write_run(dataclasses.replace(request, experiment=experiment), run)
    with JournalWriter(run.attempt(1).journal(node)) as journal:
        journal.append(Event("start", 1000.0, node, None, {}))
        journal.append(Event("environment", 1001.0, node, 0, {"torch": "2.9", "megatron_core": "0.16.1"}))
        for number in range(1, steps + 1):
            values = {
                "train/loss": 4.0 * loss_scale * number**-0.2,
                "train/grad_norm": 1.0 + 1.0 / number,
                "throughput/step_time_s": step_s * (5.0 if number <= 3 else 1.0),
            }
            data: dict[str, object] = {"step": number, "values": values}
            journal.append(Event("metrics", 1000.0 + PHASE_S + number * step_s, node, 0, data))
    if state is not None:
        write_json(run.attempt(1).end_file, End(state=state, message="", first=None, time=2000.0))
    return run


def watch_gpus(run: RunDir, *, reasons: int = 0, seconds: int = 80, watts: float = 700.0) -> None:
    """Samples of two GPUs a second apart, as the sampler writes them, from the first step on."""
    with JournalWriter(run.attempt(1).telemetry("n1")) as journal:
        for second in range(1, seconds + 1):
            gpus = tuple(
                GpuReading(bus_id=f"0{number}", power_w=watts, power_limit_w=700.0, energy_j=watts * second,
                           temperature_c=60.0 + number, throttle_reasons=reasons)
                for number in (1, 2)
            )  # fmt: skip
            host = HostReading(
                cpu_percent=1.0, load_1min=1.0, memory_used_gib=1.0, memory_available_gib=1.0, disk_free_gib=1.0
            )
            sample = Sample(time=1000.0 + PHASE_S + second, elapsed_s=float(second), host=host, gpus=gpus)
            journal.append(Event(KIND, sample.time, "n1", None, to_data(sample, as_curves=False)))


def made(root: Path, overrides: Sequence[str], **options: object) -> RunFacts:
    """The facts of such a run."""
    return read_run(make_run(root, overrides, **options))  # type: ignore[arg-type]


def row(
    name: str = "a", *, rate: float = 1000.0, gpus: int = 8, gpu: str = "H100-SXM5-80GB", **factors: object
) -> RunFacts:
    """A published row in which everything is recorded; `factors` overrides."""
    spec, model = gpu_named(gpu), model_named(str(factors.get("model", "llama3_8b")))
    values = {
        "gpu": gpu, "platform": gpu, "model": "llama3_8b", "task": "pretrain", "sequence_length": 4096,
        "global_batch": 64, "precision": "bf16", "optimizer": "adamw lr=1", "schedule": 1000, "data": "web",
        "layout": "tp1", "micro_batch": 1, "techniques": "defaults", "software": "release 1", "driver": "580",
        "nodes": -(-gpus // 8), "gpus": gpus, **factors,
    }  # fmt: skip
    known = {key: value for key, value in values.items() if value is not None}
    return RunFacts(
        name=name,
        origin=Origin.published,
        source="a test",
        factors=known,  # type: ignore[arg-type]
        gpu=spec,
        model=model,
        gpus=gpus,
        tokens_per_s_per_gpu=rate,
        tokens_per_step=64 * 4096,
        flops_per_token=flops_per_token(model, int(str(values["sequence_length"]))) if model else None,
    )


def repeats(name: str, rates: Sequence[float], **factors: object) -> list[RunFacts]:
    """Repeats of one row with a seed each."""
    return [
        dataclasses.replace(row(f"{name}{number}", rate=rate, **factors), seed=number)  # type: ignore[arg-type]
        for number, rate in enumerate(rates)
    ]


def spread(center: float, sigma: float, count: int = 3) -> list[float]:
    """Values around a centre, evenly in log units."""
    return [center * math.exp(sigma * (index - (count - 1) / 2)) for index in range(count)]
