"""compare, diff and gap: runs side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.analysis.answers import Comparability
from pipeline.analysis.bounds import hardware_bound
from pipeline.analysis.causes import Cause
from pipeline.analysis.compare_text import (
    TITLES,
    arm_lines,
    as_json,
    closing_lines,
    explanation_json,
    explanation_lines,
    notes,
    ratio_text,
    shown_answers,
    verdict_line,
    verdict_words,
    what_can_be_said,
)
from pipeline.analysis.comparison import Comparison
from pipeline.analysis.comparison import compare as compare_runs
from pipeline.analysis.diff import Change, difference
from pipeline.analysis.facts import Price, RunFacts
from pipeline.analysis.gap import Gap
from pipeline.analysis.gap import gap as find_gap
from pipeline.analysis.product import Claim, Explanation, explain, parse_claim
from pipeline.analysis.public_pairs import matched_ratios
from pipeline.analysis.published import read_published
from pipeline.analysis.selection import select_runs, shipped_rows
from pipeline.analysis.specs import gpu_mentioned, gpu_named, model_named
from pipeline.commands.fair import FairJob, fair_job
from pipeline.commands.origins import origin_of
from pipeline.errors import UserError
from pipeline.rundir import to_jsonable
from pipeline.types import GpuSpec

NO_VERDICT = 8


def compare(arguments: argparse.Namespace) -> int:
    """Prints what can be said of B against A; 8 when that is nothing."""
    root = Path(arguments.run_root)
    claim = parse_claim(arguments.explain_product) if arguments.explain_product else None
    if arguments.b is None and (claim is None or arguments.a is not None):
        raise UserError("compare: give two arms, A and B, or a claim alone with --explain-product")
    arms = tuple(select_runs(text, root) for text in (arguments.a, arguments.b)) if arguments.b else ((), ())
    priced = _priced(arms, arguments)
    found = None
    if arguments.b:
        scaling = select_runs(arguments.scaling, root) if arguments.scaling else ()
        found = compare_runs(*priced, scaling=scaling, target_loss=arguments.target_loss, treatment=arguments.treatment)
    explanation = _explanation(claim, found) if claim else None
    job = fair_job(found) if found and _is_refused(found) else None
    if arguments.json:
        print(json.dumps(_document(found, explanation, job), indent=1))
    else:
        _print(found, explanation, job)
    return NO_VERDICT if found and _is_refused(found) else 0


def diff(arguments: argparse.Namespace) -> int:
    """Prints why two runs differ."""
    root = Path(arguments.run_root)
    a, b = (_only(select_runs(text, root), text) for text in (arguments.a, arguments.b))
    found = difference(a, b, origin_of)
    if arguments.json:
        print(json.dumps(to_jsonable(found), indent=1))
        return 0
    console = _console()
    for title, changes in (("configuration", found.config), ("circumstances", found.circumstances),
                           ("results", found.results)):  # fmt: skip
        _print_changes(title, changes, console)
    if found.rate_ratio is not None:
        console.print(f"\ntokens/s/GPU of B over A: {found.rate_ratio:.4g}")
    _print_causes(found.causes, console)
    return 0


def gap(arguments: argparse.Namespace) -> int:
    """Prints how far a run is from the nearest published result."""
    run = _only(select_runs(arguments.run, Path(arguments.run_root)), arguments.run)
    rows = read_published(arguments.published, gpu_named, model_named) if arguments.published else shipped_rows()
    found = find_gap(run, rows)
    if arguments.json:
        print(json.dumps(_gap_json(found), indent=1))
        return 0
    console = _console()
    console.print(f"nearest: {found.nearest.name} ({found.nearest.source})", soft_wrap=True)
    console.print(f"distance: {found.distance:.1f} doublings: {', '.join(found.apart) or 'the same configuration'}")
    for name, ratio in (("tokens/s/GPU", found.rate_ratio), ("model FLOP/s/GPU", found.flops_ratio)):
        console.print(f"{name}: {f'{ratio:.3g} of the published rate' if ratio else 'not known for both'}")
    _print_causes(found.checks, console)
    return 0


def _gap_json(found: Gap) -> dict[str, object]:
    return {
        "nearest": found.nearest.name,
        "source": found.nearest.source,
        "distance_doublings": found.distance,
        "apart": list(found.apart),
        "rate_ratio": found.rate_ratio,
        "flops_ratio": found.flops_ratio,
        "checks": [to_jsonable(one) for one in found.checks],
    }


def _only(runs: Sequence[RunFacts], text: str) -> RunFacts:
    if len(runs) != 1:
        raise UserError(f"{text!r} names {len(runs)} runs; name one, or use `himori compare` for groups")
    return runs[0]


def _print_changes(title: str, changes: Sequence[Change], console: Console) -> None:
    if not changes:
        console.print(f"{title}: the same")
        return
    origins = any(one.origin_a or one.origin_b for one in changes)
    table = _table(title, "A", "B", *(("set by (A)", "set by (B)") if origins else ()))
    for one in changes:
        table.add_row(one.what, one.a, one.b, *((one.origin_a, one.origin_b) if origins else ()))
    console.print(table)
    console.print()


def _print_causes(causes: Sequence[Cause], console: Console) -> None:
    if not causes:
        console.print("nothing recorded explains a difference")
        return
    table = _table("look at", "alone would make", "evidence")
    for one in causes:
        table.add_row(one.name, f"x{one.factor:.3f}" if one.factor else f"up to {one.weight:.0%}", one.evidence)
    console.print("\nlikely causes, weightiest first")
    console.print(table)


def _console() -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)


def _is_refused(found: Comparison) -> bool:
    return found.headline.comparability is Comparability.not_comparable


def _priced(arms: Sequence[Sequence[RunFacts]], arguments: argparse.Namespace) -> list[list[RunFacts]]:
    """The arms at the prices that were typed."""
    given = (arguments.price_a, arguments.price_b)
    if any(given) and not (all(given) and arguments.price_basis):
        raise UserError(
            "--price-a, --price-b and --price-basis belong together: prices of different bases don't compare"
        )
    if not all(given):
        return [list(arm) for arm in arms]
    currency, _, basis = arguments.price_basis.partition(" ")
    prices = [Price(per_gpu_hour=price, currency=currency, basis=basis or "as given") for price in given]
    return [[replace(run, price=price) for run in arm] for arm, price in zip(arms, prices, strict=True)]


def _explanation(claim: Claim, found: Comparison | None) -> Explanation:
    gpu_a, gpu_b = _gpus(claim, found)
    precision = str(found.b[0].factors.get("precision", "bf16")) if found else "bf16"
    measured = matched_ratios(shipped_rows(), gpu_a.name, gpu_b.name) if gpu_a and gpu_b else []
    return explain(
        claim,
        bound=hardware_bound(gpu_a, gpu_b, precision, precision),
        measured=measured,
        arms=(found.a, found.b) if found else ((), ()),
    )


def _gpus(claim: Claim, found: Comparison | None) -> tuple[GpuSpec | None, GpuSpec | None]:
    if found:
        return found.a[0].gpu, found.b[0].gpu
    return gpu_mentioned(claim.a), gpu_mentioned(claim.b)


def _document(found: Comparison | None, explanation: Explanation | None, job: FairJob | None) -> dict[str, object]:
    document = as_json(found) if found else {}
    if explanation:
        document["product"] = explanation_json(explanation)
    if job:
        document["fair_job"] = {"what": job.words, "command": job.command, "fits": job.fits, "cost": job.cost}
    return document


# --------------------------------------------------------------------------- printing


def _print(found: Comparison | None, explanation: Explanation | None, job: FairJob | None) -> None:
    console = _console()
    if found:
        _print_comparison(found, console)
    if job:
        console.print(f"\nWhat would make it fair: {job.words}")
        console.print(f"  {job.command}", soft_wrap=True)
        console.print(f"  {job.cost}", soft_wrap=True)
    if explanation:
        console.print()
        for line in explanation_lines(explanation):
            console.print(line, soft_wrap=True)


def _print_comparison(found: Comparison, console: Console) -> None:
    console.print(verdict_line(found), soft_wrap=True)
    for line in arm_lines(found):
        console.print(f"  {line}", soft_wrap=True)
    for line in what_can_be_said(found):
        console.print(f"  What can be said: {line}", soft_wrap=True)
    console.print()
    console.print(_answers_table(found))
    for line in notes(found):
        console.print(f"  {line}", soft_wrap=True)
    if found.confounders:
        console.print()
        console.print(_confounders_table(found))
    console.print()
    for line in closing_lines(found):
        console.print(line, soft_wrap=True)


def _answers_table(found: Comparison) -> Table:
    table = _table("question", "B over A", "verdict", "A", "B")
    for one in shown_answers(found):
        table.add_row(TITLES[one.estimand], ratio_text(one) or "no ratio", verdict_words(one), one.a, one.b)
    return table


def _confounders_table(found: Comparison) -> Table:
    table = _table("differs", "class", "A", "B", "what it does")
    for one in found.confounders:
        table.add_row(one.variable.title, one.worst.value, one.a, one.b, one.effect)
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
