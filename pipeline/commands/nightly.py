"""nightly and baseline: a suite is run, judged by its history, and what is normal is promoted by hand."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launchers.status import run_statuses
from pipeline.analysis.facts import RunFacts
from pipeline.analysis.judge import Expectation, Judgement, Verdict, judge
from pipeline.analysis.night_report import exit_code, write_reports
from pipeline.analysis.nights import (
    CaseBaseline,
    CaseNight,
    Measured,
    Nights,
    SuiteNight,
    as_night,
    history_of,
    nights_of,
    read_suite,
)
from pipeline.analysis.numerics import Band, judge_numerics
from pipeline.analysis.runs import read_run
from pipeline.commands.old_code import code_state, tree_of
from pipeline.commands.request import build_request
from pipeline.commands.submit import hand_over
from pipeline.commands.webhook import post
from pipeline.errors import UserError
from pipeline.rundir import find_run
from pipeline.types import LauncherKind, RunState
from pipeline.types.suite import Case, Suite

POLL_S = 2.0
_FALLEN = (RunState.failed.value, RunState.timeout.value)
"""A commit after which runs fall over is a regression too; what was cancelled is not."""
NEVER_ENDED = "never ended"
_SETTLED = (RunState.prepared, RunState.held)


def nightly(arguments: argparse.Namespace) -> int:
    """Runs what is missing of a night, judges it, and says so; called again it goes on where it was."""
    suite = read_suite(_named(arguments.suite), arguments.conf_dir)
    night = _Night(arguments, suite)
    for case in suite.cases:
        night.submit(case)
    night.wait()
    for case in suite.cases:
        night.judge(case)
    paths = write_reports(night.record, suite, night.nights.folder / "reports" / night.record.date)
    _print(night.record, paths)
    code = exit_code(night.record)
    if arguments.webhook:
        post(arguments.webhook, night.record)
    return code


def baseline(arguments: argparse.Namespace) -> int:
    """Promotes a night's runs to what is normal, or shows what was promoted."""
    suite = read_suite(_named(arguments.suite), arguments.conf_dir)
    nights = nights_of(Path(arguments.run_root), suite.name)
    if arguments.action == "show":
        for name, one in nights.baselines().items():
            print(f"{name}  since {one.since}, code {one.commit}, curves: {', '.join(one.curves) or 'none'}")
        return 0
    newest = nights.before("9999")
    night = nights.read(_date(arguments.date)) if arguments.date else newest[-1] if newest else None
    if night is None:
        raise UserError(f"suite {suite.name} has no such night yet; `himori nightly suite={suite.name}` makes one")
    _promote(suite, night, nights, Path(arguments.run_root), arguments.case or [case.name for case in suite.cases])
    return 0


def _promote(suite: Suite, night: SuiteNight, nights: Nights, root: Path, names: Sequence[str]) -> None:
    kept = nights.baselines()
    for name in names:
        case = next((one for one in suite.cases if one.name == name), None)
        if case is None:
            raise UserError(
                f"--case: {name!r} is not in the suite; there are {', '.join(one.name for one in suite.cases)}"
            )
        runs = [read_run(find_run(root, one)) for one in night.cases[name].runs]
        done = [run for run in runs if run.state == RunState.finished.value]
        if not done:
            raise UserError(f"case {name} has no finished run on {night.date}; promote another night with --date")
        golden = {key: done[0].curves[key] for key in case.curves if key in done[0].curves}
        kept[name] = CaseBaseline(since=night.date, commit=night.commit, curves=golden)
        print(
            f"{name}  since {night.date}, code {night.commit}, curves: {', '.join(golden) or 'none'} of {done[0].name}"
        )
    nights.write_baselines(kept)


# --------------------------------------------------------------------------- one night


class _Night:
    """A night in progress; its record is on disk after every step."""

    def __init__(self, arguments: argparse.Namespace, suite: Suite) -> None:
        self.root = Path(arguments.run_root)
        self.conf_dir = arguments.conf_dir
        self.suite = suite
        self.nights = nights_of(self.root, suite.name)
        date = _date(arguments.date)
        self.record = self.nights.read(date) or SuiteNight(
            suite=suite.name, date=date, started=time.time(), commit=code_state().commit or ""
        )
        self.nights.write(self.record)

    @property
    def deadline(self) -> float:
        """When waiting is over, seconds since the epoch."""
        return self.record.started + 60 * self.suite.deadline_min

    def case(self, case: Case) -> CaseNight:
        """What the record has of a case."""
        return self.record.cases.get(case.name, CaseNight())

    def keep(self, case: Case, changed: CaseNight) -> None:
        """Puts a case into the record and the record on disk."""
        self.record = self.record.with_case(case.name, changed)
        self.nights.write(self.record)

    def submit(self, case: Case) -> None:
        """Submits the repeats that are missing; on this machine one after the other, so that they don't disturb."""
        while len(self.case(case).runs) < case.repeats:
            run_id, is_local = self._start(case, [])
            self.keep(case, dataclasses.replace(self.case(case), runs=(*self.case(case).runs, run_id)))
            print(f"{case.name}: {run_id}", flush=True)
            if is_local:
                self._wait([run_id])

    def wait(self) -> None:
        """Until all runs are over or the deadline is."""
        self._wait([run for case in self.suite.cases for run in self.case(case).runs])

    def judge(self, case: Case) -> None:
        """Measures, judges, confirms where it has to, and keeps the verdicts."""
        facts = [read_run(find_run(self.root, run)) for run in self.case(case).runs]
        measured = tuple(_measured(run) for run in facts)
        self.keep(case, dataclasses.replace(self.case(case), measured=measured))
        promoted = self.nights.baselines().get(case.name)
        found = self._judged(case, promoted, pairs=None)
        if found.needs_confirmation:
            self._run_pairs(case, promoted)
            found = self._judged(case, promoted, pairs=self._pair_values(case))
        numerics = _numerics(case, facts, promoted)
        self.keep(
            case,
            dataclasses.replace(
                self.case(case),
                performance=found.verdict.value,
                performance_reasons=(*found.reasons, *self._attribution(case, promoted, found)),
                slowdown=found.slowdown,
                numerics=numerics.verdict.value if numerics else "",
                numerics_reasons=numerics.reasons if numerics else (),
            ),
        )

    def _judged(self, case: Case, promoted: CaseBaseline | None, pairs: list[tuple[float, float]] | None) -> Judgement:
        history = history_of(self.nights.before(self.record.date), case.name, promoted.since if promoted else "")
        night = as_night(self.record.date, self.record.commit, self.case(case))
        return judge(
            history,
            night if any(one.invalid != NEVER_ENDED for one in self.case(case).measured) else None,
            guard=case.guard,
            pairs=pairs or None,
            can_confirm=self._can_confirm(promoted) and pairs != [],
            expected=expectation_of(case),
        )

    def _can_confirm(self, promoted: CaseBaseline | None) -> bool:
        """Whether there is other code to run beside today's."""
        return bool(promoted and self.suite.pairs and promoted.commit and promoted.commit != self.record.commit)

    def _attribution(self, case: Case, promoted: CaseBaseline | None, found: Judgement) -> tuple[str, ...]:
        """As far as the evidence goes: the commits between, else that the code is the same."""
        if not found.slowdown or found.verdict.value not in ("FAIL", "XFAIL"):
            return ()
        nodes = ", ".join(sorted({node for one in self.case(case).measured for node in one.nodes}))
        if promoted and promoted.commit == self.record.commit:
            return (f"the code is that of the baseline ({promoted.commit}): look at node ({nodes}), driver, power",)
        since = promoted.commit if promoted else "unknown"
        return (f"commits {since}..{self.record.commit}, ran on {nodes}",)

    # ----------------------------------------------------------------- pairs

    def _run_pairs(self, case: Case, promoted: CaseBaseline | None) -> None:
        """Baseline and candidate in turn, on the nodes of tonight's last run."""
        assert promoted is not None
        setup = [f"cluster.setup=['export PYTHONPATH={tree_of(promoted.commit, self.nights.folder / 'code')}']"]
        while len(self.case(case).pairs) < self.suite.pairs:
            base, _ = self._start(case, setup)
            self._wait([base])
            candidate, _ = self._start(case, [])
            self._wait([candidate])
            self.keep(case, dataclasses.replace(self.case(case), pairs=(*self.case(case).pairs, (base, candidate))))
            print(f"{case.name}: pair {len(self.case(case).pairs)}: {base} {candidate}", flush=True)

    def _pair_values(self, case: Case) -> list[tuple[float, float]]:
        """Pairs of which both were timed."""
        found = []
        for base, candidate in self.case(case).pairs:
            a, b = (read_run(find_run(self.root, one)).step_s for one in (base, candidate))
            if a and b:
                found.append((a, b))
        return found

    # ----------------------------------------------------------------- runs

    def _start(self, case: Case, more: list[str]) -> tuple[str, bool]:
        """(run id, whether it runs on this machine)."""
        overrides = [*case.overrides, f"run_root={self.root}", *more, *self._same_nodes(case, more)]
        request = build_request(argparse.Namespace(overrides=overrides, conf_dir=self.conf_dir, strict_profile=False))
        run, _ = hand_over(request)
        return run.run_id, request.experiment.cluster.launcher is LauncherKind.local

    def _same_nodes(self, case: Case, more: list[str]) -> list[str]:
        """Slurm's name for the nodes of tonight's last run, for pairs."""
        measured = self.case(case).measured
        nodes = sorted(measured[-1].nodes) if measured and (more or self.case(case).performance == "") else []
        is_local = any(one == "cluster=local" for one in case.overrides)
        return [] if is_local or not nodes else [f"cluster.sbatch.nodelist='{','.join(nodes)}'"]

    def _wait(self, run_ids: Sequence[str]) -> None:
        runs = [find_run(self.root, one) for one in run_ids]
        while time.time() < self.deadline:
            statuses = run_statuses(runs)
            if all(one.state.is_final or one.state in _SETTLED for one in statuses):
                return
            time.sleep(POLL_S)


def _measured(run: RunFacts) -> Measured:
    return Measured(run_id=run.name, step_s=run.step_s, nodes=run.nodes, invalid=run.throttled or _why_invalid(run))


def _why_invalid(run: RunFacts) -> str:
    if run.state == RunState.finished.value:
        return ""
    return f"ended {run.state}" if any(run.state == one.value and one.is_final for one in RunState) else NEVER_ENDED


def _numerics(case: Case, facts: Sequence[RunFacts], promoted: CaseBaseline | None) -> Judgement | None:
    """Every repeat has to end well and meet the golden curves; the first that doesn't is told."""
    fallen = [f"{run.name} ended {run.state}" for run in facts if run.state in _FALLEN]
    if fallen:
        return Judgement(verdict=Verdict.failed, reasons=tuple(fallen))
    done = [run for run in facts if run.state == RunState.finished.value]
    if not case.curves or not done:
        return None
    bands = {key: Band(relative=one.relative, steps_outside=one.steps_outside) for key, one in case.curves.items()}
    golden = promoted.curves if promoted else {}
    judged = [judge_numerics(golden, run.curves, bands) for run in done]
    return next((one for one in judged if one.verdict.value == "FAIL"), judged[0])


def expectation_of(case: Case) -> Expectation | None:
    """What of a case is known to fail."""
    known = case.known_failure
    if known is None:
        return None
    try:
        return Expectation(reason=known.reason, until=datetime.date.fromisoformat(known.until))
    except ValueError as error:
        raise UserError(f"known_failure.until: {known.until!r} is no date; the form is YYYY-MM-DD") from error


def _named(text: str) -> str:
    key, equals, name = text.partition("=")
    if key != "suite" or not equals or not name:
        raise UserError(f"{text!r}: give the suite as suite=NAME")
    return name


def _date(text: str | None) -> str:
    if text is None:
        return datetime.date.today().isoformat()
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UserError(f"--date: {text!r} is no date; the form is YYYY-MM-DD") from error


def _print(night: SuiteNight, paths: Sequence[Path]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("case", "performance", "change", "numerics", "why"):
        table.add_column(heading, overflow="fold")
    for name, case in night.cases.items():
        change = "" if case.slowdown is None else f"{case.slowdown:+.1%}"
        reasons = "; ".join((*case.performance_reasons, *case.numerics_reasons))
        table.add_row(name, case.performance, change, case.numerics, reasons)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160).print(table)
    for path in paths:
        print(f"wrote {os.path.relpath(path)}")
