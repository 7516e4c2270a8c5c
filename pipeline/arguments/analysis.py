"""Verbs that look at runs side by side: compare, diff, gap, report."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_run_root, add_verb

SELECTORS = """runs are named by
  RUN[,RUN...]           run ids, unique parts of them, directories, `last`
  KEY=VALUE[,KEY=VALUE]  all runs of the run root with these values; KEY is a key of the configuration, or one of
                         sweep, gpu, platform, layout, software, code, state, recipe; VALUE may hold * and ?
  published:PATTERN      rows of the shipped table of public results
  FILE.csv:PATTERN       rows of a table of your own (columns: docs/comparing.md)"""


def add(verbs: Verbs) -> None:
    _add_compare(verbs)
    _add_diff(verbs)
    _add_report(verbs)


def _add_compare(verbs: Verbs) -> None:
    compare = _verb(verbs, "compare", "what can be said of B against A, and what can't; exits 8 when nothing can")
    compare.add_argument("a", metavar="A", nargs="?", help="the reference")
    compare.add_argument("b", metavar="B", nargs="?", help="what is compared with it; ratios are B over A")
    compare.add_argument("--treatment", metavar="VARIABLE", help="what is in question (default: the GPU if it differs)")
    compare.add_argument("--target-loss", type=float, metavar="X", help="time to this loss (default: one all reached)")
    compare.add_argument("--scaling", metavar="RUNS", help="further runs at other sizes, for the scaling curve")
    compare.add_argument("--price-a", type=float, metavar="P", help="price of a GPU-hour of A")
    compare.add_argument("--price-b", type=float, metavar="P", help="price of a GPU-hour of B")
    compare.add_argument("--price-basis", metavar="TEXT", help="what the two prices are, with currency and date")
    compare.add_argument(
        "--explain-product",
        metavar="CLAIM",
        help="take a claimed product apart: 'B200 is 20x an H100: 1/2 nodes x 2 sequence x 2.5 FLOP/s'",
    )
    compare.add_argument("--json", action="store_true", help="for machines")


def _add_diff(verbs: Verbs) -> None:
    diff = _verb(verbs, "diff", "why two runs differ: configuration, code, versions, nodes, binding, likely causes")
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    diff.add_argument("--json", action="store_true", help="for machines")
    gap = _verb(verbs, "gap", "how far a run is from the nearest published result, and what to look at")
    gap.add_argument("run", metavar="RUN")
    gap.add_argument("--published", type=Path, metavar="FILE", help="a table of your own instead of the shipped one")
    gap.add_argument("--json", action="store_true", help="for machines")


def _add_report(verbs: Verbs) -> None:
    report = _verb(verbs, "report", "one self-contained page of a comparison or of a group of runs")
    report.add_argument("a", metavar="A", help="runs; with B the reference of a comparison")
    report.add_argument("b", metavar="B", nargs="?", help="runs compared with A")
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE",
                        help="where to write it; .html, .md, .csv or .parquet (default: %(default)s)")  # fmt: skip
    report.add_argument("--title", help="heading of the page")
    report.add_argument("--target-loss", type=float, metavar="X", help="time to this loss (default: one all reached)")
    report.add_argument("--log", action="store_true", help="also keep it with the newest run, for MLflow")


def _verb(verbs: Verbs, name: str, text: str) -> argparse.ArgumentParser:
    module = "pipeline.commands.report" if name == "report" else "pipeline.commands.analysis"
    formatter = argparse.RawDescriptionHelpFormatter
    verb = add_verb(verbs, name, (module, name), text, formatter=formatter, epilog=SELECTORS)
    add_run_root(verb)
    return verb
