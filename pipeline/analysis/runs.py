"""RunDir -> RunFacts: everything a comparison needs, read from the files of one run."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from pipeline.analysis.facts import Curve, NodeFacts, Origin, Price, RankPlace, RunFacts, Value, digest
from pipeline.analysis.watched import Watched, watch
from pipeline.errors import RunDirError
from pipeline.hardware.topology import format_ids
from pipeline.model_math import flops_per_token
from pipeline.planning.throughput import profile_price
from pipeline.rundir import AttemptDir, RunDir, read_json, to_jsonable
from pipeline.sweepdir import PointOf
from pipeline.tracking.journal import Event, read_events
from pipeline.tracking.points import Curves
from pipeline.tracking.provenance import Provenance, read_provenance
from pipeline.types import Experiment, Plan, RunState

WARM_UP_STEPS = 10
"""The first steps of an attempt compile, capture and allocate; they say nothing about the rest."""
_FEW_STEPS = 3
"""What is left out of an attempt too short to spare `WARM_UP_STEPS`."""
_STEP_TIME = "throughput/step_time_s"


def read_run(run: RunDir) -> RunFacts:
    """The facts of one run; a run that still goes on has what is there so far.

    Raises RunDirError when a file is damaged or the configuration is missing.
    """
    if not run.config_file.exists():
        raise RunDirError(f"{run.path}: no config.yaml, so not a run")
    experiment = run.read_experiment()
    plan = run.read_plan() if run.plan_file.exists() else None
    told = _read_journals(run)
    end = attempt.read_end() if (attempt := run.last_attempt()) else None
    bindings = tuple(_bindings(attempt)) if attempt else ()
    steady = told.steady_steps()
    step_s = statistics.median(steady) if steady else None
    gpus = plan.layout.ranks if plan else 1
    window = told.steady_time()
    watched = watch(run, *window) if window else None
    factors = _factors(experiment, plan, told, read_provenance(run), bindings)
    if watched and watched.power_limit_watts:
        factors["power_limit_watts"] = watched.power_limit_watts
    tokens = plan.tokens_per_step if plan else None
    return RunFacts(
        name=run.run_id,
        origin=Origin.run,
        source=str(run.path),
        state=end.state.value if end else RunState.running.value if told.first_time else RunState.prepared.value,
        factors=factors,
        config=config_leaves(experiment),
        gpu=experiment.hardware.gpu_spec,
        model=experiment.model,
        experiment=experiment,
        plan=plan,
        gpus=gpus,
        seed=experiment.seed,
        sweep=_sweep(run),
        started=told.first_time,
        tokens_per_step=tokens,
        flops_per_token=_flops(experiment, plan),
        tokens_per_s_per_gpu=tokens / step_s / gpus if tokens and step_s else None,
        step_s=step_s,
        steady_step_s=tuple(steady),
        startup_s=told.startup_s,
        peak_memory_gib=told.peak_memory_gib,
        memory_capacity_gib=plan.memory.capacity_gib if plan and plan.memory else None,
        price=_price(experiment),
        energy_j_per_token=_energy_per_token(watched, told, tokens),
        energy_boundary="GPU boards" if watched else "",
        throttled=watched.throttled if watched else "",
        telemetry=watched is not None,
        traces=watched.traces if watched else (),
        bands=watched.bands if watched else (),
        curves=told.curves(),
        nodes=tuple(sorted(told.nodes)),
        bindings=bindings,
    )


# --------------------------------------------------------------------------- journals


@dataclass(slots=True)
class _Told:
    """What the journals of all attempts tell."""

    points: dict[str, list[tuple[int, float, float]]] = field(default_factory=lambda: defaultdict(list))
    step_times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Step times of each attempt, repeats of an earlier attempt's steps included."""
    nodes: set[str] = field(default_factory=set)
    environment: dict[str, object] = field(default_factory=dict)
    first_time: float | None = None
    startup_s: float | None = None
    peak_memory_gib: float | None = None
    """Largest peak of allocated GPU memory over ranks; None where none was reported."""
    taken: Curves = field(default_factory=Curves)

    def absorb(self, event: Event, attempt: int) -> None:
        self.nodes.add(event.node)
        self.first_time = event.time if self.first_time is None else min(self.first_time, event.time)
        if event.kind == "environment":
            self.environment = event.data
        if event.kind == "memory" and isinstance(event.data.get("allocated_gib"), float):
            self.peak_memory_gib = max(self.peak_memory_gib or 0.0, float(str(event.data["allocated_gib"])))
        if event.kind != "metrics":
            return
        if self.startup_s is None:
            self.startup_s = event.time - self.first_time
        values = event.data.get("values")
        seconds = values.get(_STEP_TIME) if isinstance(values, Mapping) else None
        if isinstance(seconds, int | float):
            self.step_times[attempt].append(float(seconds))
        for point in self.taken.absorb(event):
            self.points[point.key].append((point.step, point.value, event.time))

    def steady_steps(self) -> list[float]:
        """Step times without the warm-up of each attempt."""
        return [one for _, times in sorted(self.step_times.items()) for one in steady(times)]

    def curves(self) -> dict[str, Curve]:
        return {key: _curve(points) for key, points in sorted(self.points.items())}

    def steady_time(self) -> tuple[float, float] | None:
        """(begin, end) of the time behind the warm-up; None where there were no such steps."""
        times = sorted(time for _, _, time in self.points.get(_STEP_TIME, ()))
        kept = steady(times)
        return (kept[0], kept[-1]) if len(kept) > 1 else None


def steady(step_times: Sequence[float]) -> Sequence[float]:
    """The steps of one attempt after its warm-up."""
    return step_times[WARM_UP_STEPS if len(step_times) >= 2 * WARM_UP_STEPS else _FEW_STEPS :]


def _energy_per_token(watched: Watched | None, told: _Told, tokens_per_step: int | None) -> float | None:
    """Energy between the first and the last steady step over the tokens of the steps between."""
    steps = len(steady(sorted(time for _, _, time in told.points.get(_STEP_TIME, ())))) - 1
    if watched is None or watched.energy_j is None or not tokens_per_step or steps < 1:
        return None
    return watched.energy_j / (steps * tokens_per_step)


def _curve(points: list[tuple[int, float, float]]) -> Curve:
    steps, values, times = zip(*sorted(points), strict=True)
    return Curve(steps=steps, values=values, times=times)


def _read_journals(run: RunDir) -> _Told:
    told = _Told()
    for attempt in run.attempts():
        for path in sorted(attempt.journal_dir.glob("*.jsonl")):
            for event in all_events(path):
                told.absorb(event, attempt.number)
    return told


def all_events(path: Path) -> Iterator[Event]:
    """All whole events of a journal; damaged lines are passed over."""
    offset = -1
    chunk = read_events(path)
    while chunk.offset != offset:
        yield from chunk.events
        offset = chunk.offset
        chunk = read_events(path, offset)


# --------------------------------------------------------------------------- variables


def _factors(
    experiment: Experiment, plan: Plan | None, told: _Told, provenance: Provenance | None, bindings: Sequence[NodeFacts]
) -> dict[str, Value]:
    recipe, spec = experiment.recipe, experiment.hardware.gpu_spec
    layout = plan.layout if plan else None
    found: dict[str, Value | None] = {
        "gpu": spec.name if spec else experiment.hardware.gpu or f"CPU of {experiment.hardware.name}",
        "platform": experiment.hardware.name,
        "model": experiment.model.name,
        "model_shape": digest(_without_words(to_jsonable(experiment.model))),
        "task": "pretrain",
        "sequence_length": recipe.sequence_length,
        "precision": experiment.precision.name,
        "global_batch": recipe.global_batch,
        "optimizer": _words(to_jsonable(experiment.optimizer), ("distributed",)),
        "schedule": recipe.steps,
        "data": experiment.data.name + (f" {experiment.data.path}" if experiment.data.path else ""),
        "layout": layout_text(plan) if plan else None,
        "micro_batch": recipe.micro_batch,
        "techniques": techniques_text(experiment),
        "gpus": layout.ranks if layout else None,
        "nodes": layout.nodes if layout else None,
        "software": _software(told.environment, provenance),
        "driver": _known(told.environment.get("driver")),
        "code": _code(provenance),
        "binding": ",".join(sorted({flag for node in bindings for flag in node.flags})) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def layout_text(plan: Plan) -> str:
    """Parallel sizes as people write them."""
    layout = plan.layout
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp")}
    return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1 or name in ("tp", "pp", "dp"))


def techniques_text(experiment: Experiment) -> str:
    """What differs from the defaults among what trades memory for time."""
    chosen = experiment.techniques
    usual = type(chosen)()
    changed = {one.name: getattr(chosen, one.name) for one in fields(chosen)}
    changed = {name: value for name, value in changed.items() if value != getattr(usual, name)}
    if experiment.precision.low_precision_params:
        changed["low_precision_params"] = True
    return _words(to_jsonable(changed)) or "defaults"


def _words(values: Mapping[str, Any], left_out: Sequence[str] = ()) -> str:
    shown = {key: value.value if isinstance(value, Enum) else value for key, value in values.items()}
    name = [str(shown.pop("name"))] if "name" in shown else []
    return " ".join(name + [f"{key}={value}" for key, value in shown.items() if key not in left_out])


def _without_words(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in ("name", "description")}


def _software(environment: Mapping[str, object], provenance: Provenance | None) -> str | None:
    """Versions the workers saw; where they told none, those of the submitting machine."""
    names = ("torch", "megatron_core", "transformer_engine", "cuda", "nccl", "container")
    seen = {name: environment[name] for name in names if environment.get(name)}
    if not seen and provenance:
        versions = {name.replace("-", "_"): version for name, version in provenance.versions.items()}
        seen = {name: versions[name] for name in names if versions.get(name)}
    return ", ".join(f"{name} {version}" for name, version in seen.items()) or None


def _code(provenance: Provenance | None) -> str | None:
    if provenance is None or provenance.code is None or provenance.code.commit is None:
        return f"himori {provenance.versions.get('himori')}" if provenance else None
    return provenance.code.commit[:12] + (" with changes" if provenance.code.dirty else "")


def _known(value: object) -> str | None:
    return None if value is None else str(value)


def _flops(experiment: Experiment, plan: Plan | None) -> float:
    tp = plan.layout.tp if plan else 1
    return flops_per_token(experiment.model, experiment.recipe.sequence_length, tp=tp)


def _sweep(run: RunDir) -> tuple[str, ...]:
    if not run.point_file.exists():
        return ()
    point = read_json(run.point_file, PointOf)
    return point.sweep_id, point.sweep_name


def _price(experiment: Experiment) -> Price | None:
    cluster = experiment.cluster
    site = None
    if cluster.price_per_gpu_hour is not None:
        site = (cluster.price_per_gpu_hour, cluster.price_currency, cluster.price_basis or f"cluster {cluster.name}")
    found = profile_price(experiment.hardware.node_spec, site)
    return Price(per_gpu_hour=found[0], currency=found[1], basis=found[2]) if found else None


def config_leaves(experiment: Experiment) -> dict[str, Value]:
    """Every value of a configuration by dotted key; evidence for numbers is left out, and so is what is not set."""
    return dict(_leaves("", to_jsonable(experiment)))


def _leaves(key: str, value: object) -> Iterator[tuple[str, Value]]:
    match value:
        case Mapping():
            for name, item in value.items():
                if name != "sources":
                    yield from _leaves(f"{key}.{name}" if key else str(name), item)
        case None:
            return
        case list() | tuple():
            yield key, json.dumps(value)
        case Enum():
            yield key, str(value.value)
        case str() | int() | float():
            yield key, value


# --------------------------------------------------------------------------- bindings


def _bindings(attempt: AttemptDir) -> Iterator[NodeFacts]:
    for path in attempt.bindings():
        try:
            data = json.loads(path.read_text(encoding="utf-8"))["data"]
            yield NodeFacts(
                node=data["node"],
                flags=tuple(data["flags"]),
                red=tuple(data["red"]),
                warnings=tuple(data["warnings"]),
                ranks=tuple(_place(one["planned"]) for one in data["ranks"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirError(f"{path}: not a binding certificate ({error})") from error


def _place(planned: Mapping[str, Any]) -> RankPlace:
    memory = planned["memory"]
    return RankPlace(
        rank=planned["rank"],
        gpu=planned["gpu"] or "none",
        home="unknown" if planned["home"] is None else str(planned["home"]),
        cpus=format_ids(planned["cpus"]),
        memory=" ".join([memory["mode"], *map(str, memory["nodes"])]),
        nics=" ".join(planned["nics"]) or "none",
    )
