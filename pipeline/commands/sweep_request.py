"""From overrides of several values to the requests of a sweep: composed, planned, named; nothing is written."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.calibration_files import find_calibration
from pipeline.code_snapshot import Code, kept_code, read_code
from pipeline.commands.request import Request, absolute, trainable
from pipeline.errors import PlanRefused
from pipeline.identity import point_digest, sweep_digest
from pipeline.planning.calibration import Calibration
from pipeline.planning.plan import make_plan
from pipeline.rundir import to_jsonable
from pipeline.sweep_config import LoadedSweep, load_sweep
from pipeline.sweepdir import LeftOut, Sweep, SweepPoint
from pipeline.tracking.store import resolve_store
from pipeline.types import DroppedPoint, Experiment, Plan, Point

_NOT_PLANNED_BY = ("lr", "min_lr", "warmup_steps", "decay", "weight_decay", "beta1", "beta2", "eps", "clip_grad")
"""Keys of the optimizer that no plan depends on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPoint:
    """A point of a sweep with its plan."""

    point: Point
    request: Request
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """Everything decided about a sweep before it has a directory."""

    name: str
    keys: tuple[str, ...]
    planned: tuple[PlannedPoint, ...]
    left_out: tuple[DroppedPoint, ...]
    """Points that a condition excludes, that can't run, or that are the same as another, by number."""
    cluster_named: bool
    code: Code
    run_root: Path

    @property
    def digest(self) -> str:
        """What names the set of points."""
        return sweep_digest([one.digest for one in self.planned])

    def record(self, sweep_id: str, arguments: argparse.Namespace, now: float) -> Sweep:
        """The sweep as it is kept."""
        return Sweep(
            sweep_id=sweep_id,
            name=self.name,
            keys=self.keys,
            overrides=tuple(arguments.overrides),
            conf_dir=str(arguments.conf_dir.resolve()) if arguments.conf_dir else None,
            code=self.code.digest,
            created_at=now,
            points=tuple(
                SweepPoint(number=one.point.number, digest=one.digest, choices=one.point.choices)
                for one in self.planned
            ),
            left_out=tuple(LeftOut(number=one.number, choices=one.choices, reason=one.reason) for one in self.left_out),
        )


def build_sweep(
    arguments: argparse.Namespace, *, trainable_only: bool, code_of: tuple[str, Path] | None = None
) -> SweepRequest:
    """Composes, checks and plans every point.

    `trainable_only` also leaves out what can be planned but not trained yet; `code_of` is the digest of a snapshot and
    its run root, instead of the code as it is now. Raises UserError.
    """
    loaded = load_sweep(arguments.overrides, conf_dir=arguments.conf_dir)
    code = kept_code(*code_of) if code_of else read_code()
    planner = Planner()
    planned: dict[str, PlannedPoint] = {}
    left_out: list[DroppedPoint] = list(loaded.dropped)
    for point in _absolute_points(loaded):
        try:
            one = plan_point(point, code, planner)
            why_not = one.request.why_untrainable() if trainable_only else None
        except PlanRefused as error:
            left_out.append(_dropped(point, str(error)))
            continue
        if why_not is None and one.digest in planned:
            why_not = f"the same as point {planned[one.digest].point.number}"
        if why_not is None:
            planned[one.digest] = one
        else:
            left_out.append(_dropped(point, why_not))
    return SweepRequest(
        name=loaded.name,
        keys=loaded.keys,
        planned=tuple(planned.values()),
        left_out=tuple(sorted(left_out, key=lambda one: one.number)),
        cluster_named="cluster" in loaded.named_groups,
        code=code,
        run_root=_run_root(loaded),
    )


def _run_root(loaded: LoadedSweep) -> Path:
    return Path(absolute(loaded.points[0].experiment, Path.cwd()).run_root) if loaded.points else Path.cwd() / "runs"


def _absolute_points(loaded: LoadedSweep) -> Sequence[Point]:
    points = [dataclasses.replace(point, experiment=absolute(point.experiment, Path.cwd())) for point in loaded.points]
    stores = {(point.experiment.tracking.uri, point.experiment.run_root) for point in points}
    for uri, run_root in stores:
        resolve_store(uri, Path(run_root))  # a bad URI is found before anything is queued
    return points


def plan_point(point: Point, code: Code, planner: Planner | None = None) -> PlannedPoint:
    """Plans one point; raises PlanRefused."""
    experiment = point.experiment
    request = Request(
        experiment=experiment,
        plan=(planner or Planner()).plan(experiment),
        cluster_named=True,
        code_dir=code.folder(Path(experiment.run_root)),
    )
    return PlannedPoint(point=point, request=request, digest=point_digest(to_jsonable(experiment), code.digest))


def _dropped(point: Point, reason: str) -> DroppedPoint:
    return DroppedPoint(number=point.number, choices=point.choices, reason=reason)


class Planner:
    """Plans points; those that differ only in what no plan depends on are planned once."""

    def __init__(self) -> None:
        self._calibrations: dict[tuple[str, str], Calibration] = {}
        self._known: dict[str, Plan | PlanRefused] = {}

    def plan(self, experiment: Experiment) -> Plan:
        """The plan of an experiment; raises PlanRefused."""
        key = repr(_as_planned(experiment))
        if key not in self._known:
            try:
                calibration = self._calibration(experiment)
                self._known[key] = make_plan(experiment, calibration, accept=trainable(experiment))
            except PlanRefused as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, PlanRefused):
            raise found
        return found

    def _calibration(self, experiment: Experiment) -> Calibration:
        """The calibration a point names, read once."""
        key = experiment.calibration, experiment.run_root
        if key not in self._calibrations:
            self._calibrations[key] = find_calibration(experiment.calibration, Path(experiment.run_root))
        return self._calibrations[key]


def _as_planned(experiment: Experiment) -> Experiment:
    blank = {name: None for name in _NOT_PLANNED_BY}
    optimizer = dataclasses.replace(experiment.optimizer, **blank)  # type: ignore[arg-type]
    return dataclasses.replace(experiment, optimizer=optimizer, seed=0)
