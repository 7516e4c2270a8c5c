"""The nights of a suite on disk: what was submitted, what came of it, and what counts as normal."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass, field
from pathlib import Path

import cattrs
import yaml

from pipeline.analysis.facts import Curve
from pipeline.analysis.screening import Night, Repeat
from pipeline.conf_groups import options, shipped_conf_dir
from pipeline.errors import UserError
from pipeline.rundir import from_jsonable, read_json, write_json
from pipeline.types.suite import Suite


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One repeat as it counts."""

    run_id: str
    step_s: float | None
    nodes: tuple[str, ...]
    invalid: str
    """Why it must not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseNight:
    """One case of one night."""

    runs: tuple[str, ...] = ()
    """Runs that were submitted, by id."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(baseline, candidate) runs of the confirmation; an empty id is not submitted yet."""
    measured: tuple[Measured, ...] = ()
    performance: str = ""
    """Verdict, empty before there is one."""
    performance_reasons: tuple[str, ...] = ()
    numerics: str = ""
    numerics_reasons: tuple[str, ...] = ()
    slowdown: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteNight:
    """One night of a suite; written after every step, so that whoever was killed goes on where it was."""

    suite: str
    date: str
    started: float
    """Seconds since the epoch."""
    commit: str
    """Of himori's own code: it is part of what a point is."""
    cases: dict[str, CaseNight] = field(default_factory=dict)

    def with_case(self, name: str, case: CaseNight) -> SuiteNight:
        """The night with one case replaced."""
        return dataclasses.replace(self, cases={**self.cases, name: case})


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseBaseline:
    """What was promoted for one case."""

    since: str
    """Nights from this date on are its history."""
    commit: str
    curves: dict[str, Curve]
    """Golden curves by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nights:
    """The folder of a suite under a run root."""

    folder: Path

    def file(self, date: str) -> Path:
        """The record of one night."""
        return self.folder / "nights" / f"{date}.json"

    def read(self, date: str) -> SuiteNight | None:
        """One night, or None before it began."""
        return read_json(self.file(date), SuiteNight) if self.file(date).exists() else None

    def write(self, night: SuiteNight) -> None:
        """Keeps a night."""
        write_json(self.file(night.date), night)

    def before(self, date: str) -> list[SuiteNight]:
        """All nights before a date, oldest first."""
        files = sorted(path for path in (self.folder / "nights").glob("*.json") if path.stem < date)
        return [read_json(path, SuiteNight) for path in files]

    def baselines(self) -> dict[str, CaseBaseline]:
        """What was promoted, by case."""
        path = self.folder / "baseline.json"
        return read_json(path, dict[str, CaseBaseline]) if path.exists() else {}

    def write_baselines(self, baselines: dict[str, CaseBaseline]) -> None:
        """Keeps what was promoted."""
        write_json(self.folder / "baseline.json", baselines)


def nights_of(run_root: Path, suite: str) -> Nights:
    """Where the nights of a suite are kept."""
    return Nights(folder=run_root / "nightly" / suite)


def history_of(nights: list[SuiteNight], case: str, since: str) -> list[Night]:
    """The nights of one case that count as its history: regressions that were confirmed don't become normal."""
    return [
        as_night(one.date, one.commit, one.cases[case])
        for one in nights
        if case in one.cases and one.date >= since and one.cases[case].performance != "FAIL"
    ]


def as_night(date: str, commit: str, case: CaseNight) -> Night:
    """A case's night as it is judged."""
    repeats = tuple(
        Repeat(value=one.step_s or 1.0, nodes=one.nodes, invalid=one.invalid or ("" if one.step_s else "not timed"))
        for one in case.measured
    )
    return Night(date=datetime.date.fromisoformat(date), repeats=repeats, commit=commit)


def read_suite(name: str, conf_dir: Path | None = None) -> Suite:
    """A suite of `conf/suite`; raises UserError naming what there is, or what is wrong in it."""
    folders = [conf_dir, shipped_conf_dir()] if conf_dir else [shipped_conf_dir()]
    there = options("suite", folders)
    if name not in there:
        raise UserError(f"suite={name}: no such suite; conf/suite has: {', '.join(there)}")
    path = next(path for folder in folders if (path := folder / "suite" / f"{name}.yaml").exists())
    try:
        suite = from_jsonable(yaml.safe_load(path.read_text(encoding="utf-8")), Suite)
    except Exception as error:  # cattrs raises groups of whatever went wrong inside
        raise UserError(f"{path.name}: {'; '.join(cattrs.transform_error(error))}") from error
    names = [case.name for case in suite.cases]
    if len(set(names)) != len(names):
        raise UserError(f"{path.name}: two cases have one name; names there: {', '.join(names)}")
    return suite
