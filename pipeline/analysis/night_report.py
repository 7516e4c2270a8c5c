"""A night's verdicts as JUnit XML, markdown and JSON, and as an exit code."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from pipeline.analysis.judge import IS_REGRESSION, Verdict
from pipeline.analysis.nights import CaseNight, SuiteNight
from pipeline.rundir import to_jsonable, write_text
from pipeline.types.suite import Suite

REGRESSION = 4
NO_VERDICT = 8
_REGRESSIONS = {one.value for one in IS_REGRESSION}
_GOOD = {Verdict.passed.value, Verdict.xfail.value}


def checks(case: CaseNight) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(kind, verdict, reasons) of what was checked of a case."""
    if case.performance:
        yield "performance", case.performance, case.performance_reasons
    if case.numerics:
        yield "numerics", case.numerics, case.numerics_reasons


def exit_code(night: SuiteNight) -> int:
    """4 when anything regressed, 8 when nothing could be judged, else 0."""
    verdicts = [verdict for case in night.cases.values() for _, verdict, _ in checks(case)]
    if any(verdict in _REGRESSIONS for verdict in verdicts):
        return REGRESSION
    return 0 if any(verdict in _GOOD for verdict in verdicts) else NO_VERDICT


def summary_line(night: SuiteNight) -> str:
    """One line: how many of each verdict."""
    counts: dict[str, int] = {}
    for case in night.cases.values():
        for _, verdict, _ in checks(case):
            counts[verdict] = counts.get(verdict, 0) + 1
    return f"{night.suite} {night.date}: " + ", ".join(
        f"{count} {verdict}" for verdict, count in sorted(counts.items())
    )


def write_reports(night: SuiteNight, suite: Suite, folder: Path) -> list[Path]:
    """Writes junit.xml, summary.md and night.json."""
    files = {
        "junit.xml": _junit(night),
        "summary.md": _markdown(night, suite),
        "night.json": json.dumps(to_jsonable(night), indent=1) + "\n",
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def _junit(night: SuiteNight) -> str:
    """Regressions are failures, what could not be judged is skipped."""
    root = ET.Element("testsuite", name=night.suite, timestamp=night.date)
    for name, case in night.cases.items():
        for kind, verdict, reasons in checks(case):
            test = ET.SubElement(root, "testcase", classname=f"{night.suite}.{name}", name=kind)
            said = "; ".join(reasons)
            if verdict in _REGRESSIONS:
                ET.SubElement(test, "failure", message=f"{verdict}: {said}")
            elif verdict not in _GOOD or verdict == Verdict.xfail.value:
                ET.SubElement(test, "skipped", message=f"{verdict}: {said}")
            else:
                ET.SubElement(test, "system-out").text = said
    tests = root.findall("testcase")
    root.set("tests", str(len(tests)))
    root.set("failures", str(len(root.findall("testcase/failure"))))
    root.set("skipped", str(len(root.findall("testcase/skipped"))))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _markdown(night: SuiteNight, suite: Suite) -> str:
    rows = [
        f"| {name} | {kind} | {verdict} | {'; '.join(reasons)} |"
        for name, case in night.cases.items()
        for kind, verdict, reasons in checks(case)
    ]
    head = f"# {summary_line(night)}\n\n{suite.description}\n\nCode {night.commit or 'without a commit'}.\n\n"
    return head + "\n".join(["| case | check | verdict | why |", "|---|---|---|---|", *rows]) + "\n"
