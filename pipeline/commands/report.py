"""report: a comparison or a group of runs as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.analysis.answers import Comparability
from pipeline.analysis.comparison import Comparison, compare
from pipeline.analysis.facts import Origin, RunFacts
from pipeline.analysis.frames import answers_frame, runs_frame
from pipeline.analysis.report import Report, as_html, as_markdown, comparison_report, runs_report
from pipeline.analysis.selection import select_runs
from pipeline.commands.fair import fair_job
from pipeline.commands.tracking import sync
from pipeline.errors import UserError
from pipeline.rundir import RunDir, write_text

KINDS = (".html", ".md", ".csv", ".parquet")


def report(arguments: argparse.Namespace) -> int:
    """Writes the report and says where."""
    output: Path = arguments.output
    if output.suffix not in KINDS:
        raise UserError(f"--output: {output.name} ends in {output.suffix or 'nothing'}; give one of {', '.join(KINDS)}")
    root = Path(arguments.run_root)
    runs = select_runs(arguments.a, root)
    found = None
    if arguments.b is not None:
        found = compare(runs, select_runs(arguments.b, root), target_loss=arguments.target_loss)
    if output.suffix in (".csv", ".parquet"):
        _write_table(runs, found, output)
    else:
        page = _page(arguments, runs, found)
        write_text(output, as_html(page) if output.suffix == ".html" else as_markdown(page))
    print(f"wrote {output}")
    if arguments.log:
        _keep_with_run(runs if found is None else [*found.a, *found.b], output)
    return 0


def _page(arguments: argparse.Namespace, runs: list[RunFacts], found: Comparison | None) -> Report:
    if found is None:
        return runs_report(runs, title=arguments.title or f"{len(runs)} runs: {arguments.a}")
    refused = found.headline.comparability is Comparability.not_comparable
    title = arguments.title or f"{arguments.b} against {arguments.a}"
    return comparison_report(found, title=title, fair_job=fair_job(found) if refused else None)


def _write_table(runs: list[RunFacts], found: Comparison | None, output: Path) -> None:
    frame = runs_frame(runs) if found is None else answers_frame(found).reset_index()
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".csv":
        frame.to_csv(output, index=False)
    else:
        frame.to_parquet(output, index=False)


def _keep_with_run(runs: list[RunFacts], output: Path) -> None:
    """In the directory of the newest run, and in MLflow as an artifact of it."""
    own = sorted((run for run in runs if run.origin is Origin.run), key=lambda run: run.name)
    if not own:
        raise UserError("--log: none of these is a run of ours, so there is nothing to keep the report with")
    run = RunDir(Path(own[-1].source))
    kept = run.reports_dir / output.name
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(output.read_bytes())
    print(f"kept {kept}", flush=True)
    sync(argparse.Namespace(run_root=str(run.path.parent), runs=[run.run_id]))
