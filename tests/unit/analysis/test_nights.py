"""Suites, the nights they leave on disk, and what a night's verdicts become."""

from __future__ import annotations

import datetime
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from made_runs import H100, make_run

from pipeline.__main__ import main, parser
from pipeline.analysis.night_report import exit_code, summary_line, write_reports
from pipeline.analysis.nights import CaseNight, Measured, SuiteNight, history_of, nights_of, read_suite
from pipeline.commands.nightly import expectation_of
from pipeline.commands.request import load_experiment
from pipeline.conf_groups import options
from pipeline.errors import UserError
from pipeline.types import RunState

SUITE = """\
name: mine
cases:
  - name: one
    overrides: [hardware=dgx_h100]
    repeats: 2
    curves: {train/loss: {relative: 0.0}}
"""


def night(date: str, performance: str = "PASS", numerics: str = "", *, value: float = 1.0) -> SuiteNight:
    """A night of one case."""
    measured = tuple(Measured(run_id=f"r{n}", step_s=value, nodes=("n1",), invalid="") for n in range(3))
    case = CaseNight(
        runs=("r0",), measured=measured, performance=performance, performance_reasons=("why <so>",), numerics=numerics
    )
    return SuiteNight(suite="mine", date=date, started=0.0, commit="abc", cases={"one": case})


@pytest.mark.parametrize("name", options("suite"))
def test_every_shipped_suite_reads_and_its_cases_compose(name: str) -> None:
    """What a suite asks for can be asked for."""

    for case in read_suite(name).cases:
        loaded = load_experiment(parser().parse_args(["plan", *case.overrides]))
        assert loaded.experiment.name
        assert case.repeats >= 1
        assert expectation_of(case) is None or case.known_failure


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mine\ncases: [{name: a}]\n", "overrides"),
        ("name: mine\ncases: []\ncolour: red\n", "colour"),
        ("name: mine\ncases: [{name: a, overrides: []}, {name: a, overrides: []}]\n", "two cases have one name"),
    ],
)
def test_a_wrong_suite_is_named(text: str, said: str, tmp_path: Path) -> None:
    """File and key."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_suite("mine", tmp_path)
    with pytest.raises(UserError, match=r"no such suite; conf/suite has: .*demo"):
        read_suite("none", tmp_path)


def test_nights_are_kept_and_failures_are_no_history(tmp_path: Path) -> None:
    """From the promoted date on, without the nights that were called a regression."""
    nights = nights_of(tmp_path, "mine")
    for date, verdict in (("2026-01-01", "PASS"), ("2026-01-02", "FAIL"), ("2026-01-03", "NOT_POWERED")):
        nights.write(night(date, verdict))
    assert nights.read("2026-01-02") == night("2026-01-02", "FAIL")
    before = nights.before("2026-01-04")
    assert [one.date for one in history_of(before, "one", "")] == [datetime.date(2026, 1, 1), datetime.date(2026, 1, 3)]
    assert len(history_of(before, "one", "2026-01-02")) == 1
    assert history_of(before, "other", "") == []
    assert nights.before("2026-01-01") == []


@pytest.mark.parametrize(
    ("performance", "numerics", "code"),
    [
        ("PASS", "PASS", 0),
        ("FAIL", "PASS", 4),
        ("PASS", "FAIL", 4),
        ("XPASS", "", 4),
        ("XFAIL", "", 0),
        ("NO_BASELINE", "PASS", 0),
        ("NO_BASELINE", "NO_BASELINE", 8),
        ("INVALID", "", 8),
        ("NOT_RUN", "", 8),
        ("NOT_POWERED", "PASS", 0),
    ],
)
def test_exit_codes_and_reports(performance: str, numerics: str, code: int, tmp_path: Path) -> None:
    """JUnit counts as the exit code does."""
    record = night("2026-01-05", performance, numerics)
    suite_dir = tmp_path / "suite"
    suite_dir.mkdir()
    (suite_dir / "mine.yaml").write_text(SUITE, encoding="utf-8")
    paths = write_reports(record, read_suite("mine", tmp_path), tmp_path / "reports")
    assert exit_code(record) == code
    root = ET.parse(paths[0]).getroot()
    assert (int(root.get("failures", "0")) > 0) == (code == 4)
    assert len(root.findall("testcase")) == 1 + bool(numerics)
    assert performance in paths[1].read_text(encoding="utf-8")
    assert summary_line(record).startswith("mine 2026-01-05: ")


def test_a_night_that_was_run_is_judged_and_promoted_without_running_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record is all that is needed: runs that are there are not submitted again; curves that change fail."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.yaml").write_text(SUITE, encoding="utf-8")
    root, nights = tmp_path / "runs", nights_of(tmp_path / "runs", "mine")
    common = ["suite=mine", "--conf-dir", str(tmp_path), "--run-root", str(root)]

    def on(date: str, *, loss_scale: float = 1.0, state: RunState = RunState.finished) -> int:
        runs = tuple(make_run(root, H100, loss_scale=loss_scale, state=state).run_id for _ in range(2))
        nights.write(
            SuiteNight(suite="mine", date=date, started=0.0, commit="abc", cases={"one": CaseNight(runs=runs)})
        )
        return main(["nightly", *common, "--date", date])

    assert on("2026-01-01") == 8
    assert main(["baseline", "set", *common]) == 0
    assert on("2026-01-02") == 0
    assert on("2026-01-03", loss_scale=1.0001) == 4
    assert "train/loss: 80 of 80 steps" in capsys.readouterr().out
    assert on("2026-01-04", state=RunState.failed) == 4
    assert main(["baseline", "set", *common]) == 2
    assert "no finished run" in capsys.readouterr().err
    record = nights.read("2026-01-03")
    assert record is not None
    assert (record.cases["one"].performance, record.cases["one"].numerics) == ("NO_BASELINE", "FAIL")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nightly", "demo"], "give the suite as suite=NAME"),
        (["nightly", "suite=demo", "--date", "yesterday"], "the form is YYYY-MM-DD"),
        (["baseline", "set", "suite=demo"], "no such night yet"),
    ],
)
def test_mistakes(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 on one line, and nothing is written."""
    assert main([*arguments, "--run-root", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
