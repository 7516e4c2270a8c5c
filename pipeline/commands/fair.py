"""The job that would make a comparison fair: one arm again with what must match from the other."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.analysis.comparison import Comparison
from pipeline.analysis.facts import RunFacts
from pipeline.calibration_files import shipped_calibration
from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.errors import HimoriError, PlanRefused
from pipeline.planning.plan import make_plan
from pipeline.rundir import to_jsonable
from pipeline.types import Experiment

GROUPS = ("hardware", "cluster", "model", "precision", "optimizer", "recipe", "data", "tracking")
_OF_PUBLISHED = (
    ("model", "model"),
    ("precision", "precision"),
    ("sequence_length", "recipe.sequence_length"),
    ("global_batch", "recipe.global_batch"),
    ("micro_batch", "recipe.micro_batch"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FairJob:
    """A request that can be submitted as it stands, or why there is none."""

    words: str
    """Which arm is run again with what of the other."""
    command: str
    fits: bool
    """Whether its plan is accepted."""
    cost: str
    """GPU-hours by the plan, or why the plan refuses it."""


def fair_job(found: Comparison) -> FairJob | None:
    """One arm's hardware with the other's recipe and size, preferably one that fits; None when too little is known."""
    a, b = found.a[0], found.b[0]
    asked = (("A again with B's recipe and size", a, b), ("B again with A's recipe and size", b, a))
    jobs = [job for words, again, like in asked if (job := _job(words, again, like)) is not None]
    return next((job for job in jobs if job.fits), jobs[0] if jobs else None)


def _job(words: str, again: RunFacts, like: RunFacts) -> FairJob | None:
    overrides = _overrides(again, like)
    if overrides is None:
        return None
    command = "himori submit " + " ".join(shlex.quote(one) for one in overrides)
    try:
        plan = make_plan(load(overrides).experiment, shipped_calibration())
    except PlanRefused as error:
        return FairJob(words=words, command=command, fits=False, cost=f"its plan is refused: {error}")
    except HimoriError:
        return None
    hours = f"about {plan.cost.gpu_hours:,.1f} GPU-hours by the plan" if plan.cost else "its time is not estimated here"
    return FairJob(words=words, command=command, fits=True, cost=hours)


def _overrides(a: RunFacts, b: RunFacts) -> list[str] | None:
    if a.experiment is not None and b.experiment is not None:
        return overrides_of(_with_recipe_of(a.experiment, b.experiment, b.gpus))
    if a.experiment is None and b.experiment is not None:  # our own run again, with what the published row states
        return [*overrides_of(b.experiment), *_published(a, groups=("model", "precision")), f"ranks={a.gpus}"]
    hardware = a.factors.get("platform")
    if a.experiment is None and hardware in options("hardware"):
        return [f"hardware={hardware}", *_published(b, groups=("model", "precision")), f"ranks={b.gpus}"]
    if a.experiment is not None:
        return [*overrides_of(a.experiment), *_published(b, groups=("model", "precision")), f"ranks={b.gpus}"]
    return None


def _with_recipe_of(a: Experiment, b: Experiment, gpus: int) -> Experiment:
    """What must match from B; layout and techniques stay A's to tune, and are derived anew where the model changes."""
    return dataclasses.replace(
        a,
        model=b.model,
        precision=b.precision,
        optimizer=b.optimizer,
        recipe=b.recipe,
        data=b.data,
        nodes=None,
        ranks=gpus,
    )


def _published(row: RunFacts, groups: tuple[str, ...]) -> list[str]:
    """What a published row states, where `conf/` has it."""
    found = []
    for key, override in _OF_PUBLISHED:
        value = row.factors.get(key)
        if value is not None and (override not in groups or value in options(override)):
            found.append(f"{override}={value}")
    return found


# --------------------------------------------------------------------------- an experiment as overrides


def overrides_of(experiment: Experiment) -> list[str]:
    """Overrides that compose to an experiment: its groups by name, and every value that differs from theirs."""
    chosen = [f"{group}={getattr(experiment, group).name}" for group in GROUPS if _is_option(experiment, group)]
    composed = load(chosen).experiment
    wanted, there = (dict(_leaves("", to_jsonable(one))) for one in (experiment, composed))
    changed = [f"{key}={_literal(value)}" for key, value in wanted.items() if there.get(key) != value]
    return [*chosen, *(one for one in changed if not one.startswith("tracking.finish"))]


def _is_option(experiment: Experiment, group: str) -> bool:
    return getattr(experiment, group).name in options(group)


def _leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), item)
    else:
        yield key, value


def _literal(value: object) -> str:
    """A value in Hydra's grammar."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return json.dumps(value)
        case str() if value.replace("_", "").replace("-", "").replace(".", "").isalnum():
            return value
        case _:
            return json.dumps(value)
