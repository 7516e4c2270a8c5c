"""A comparison or a group of runs as one page: tables and plots of the same numbers, HTML or markdown (no effects)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jinja2

from pipeline import __version__
from pipeline.analysis import plots
from pipeline.analysis.compare_text import (
    TITLES,
    closing_lines,
    notes,
    ratio_text,
    shown_answers,
    verdict_line,
    verdict_words,
    what_can_be_said,
)
from pipeline.analysis.comparison import Comparison
from pipeline.analysis.convergence import LOSS
from pipeline.analysis.facts import RunFacts
from pipeline.analysis.groups import Estimate, Group, grouped


class FairJobLike(Protocol):
    """What a report shows of the job that would make a comparison fair."""

    @property
    def words(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def cost(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """One table of a report, all cells as text."""

    title: str
    name: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """One plot of a report."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a page shows."""

    title: str
    tables: tuple[ReportTable, ...]
    """Shown before the plots."""
    details: tuple[ReportTable, ...]
    """Shown behind them."""
    plots: tuple[Plot, ...]
    not_shown: tuple[str, ...] = ()
    verdict: str = ""
    verdict_class: str = ""
    fair_job: FairJobLike | None = None
    version: str = field(default=__version__)


def comparison_report(found: Comparison, *, title: str, fair_job: FairJobLike | None = None) -> Report:
    """The page of a comparison."""
    groups = [Group(mark=mark, label=_label(arm), runs=arm) for mark, arm in (("A", found.a), ("B", found.b))]
    drawn, missing = _plots(groups)
    return Report(
        title=title,
        verdict=verdict_line(found),
        verdict_class=found.headline.comparability.name,
        tables=(_answers(found), _confounders(found), _group_table(groups)),
        details=tuple(_run_tables(groups)),
        plots=drawn,
        not_shown=missing,
        fair_job=fair_job,
    )


def runs_report(runs: Sequence[RunFacts], *, title: str) -> Report:
    """The page of a group of runs: a sweep, repeats, a night."""
    groups = grouped(runs)
    drawn, missing = _plots(groups)
    return Report(
        title=title,
        tables=(_group_table(groups),),
        details=tuple(_run_tables(groups)),
        plots=drawn,
        not_shown=missing,
    )


def as_html(report: Report) -> str:
    """One self-contained page: no script, nothing loaded from anywhere."""
    return _template("report.html.j2", autoescape=True).render(_context(report))


def as_markdown(report: Report) -> str:
    """The tables of the page."""
    return _template("report.md.j2", autoescape=False).render(_context(report)).strip() + "\n"


def _context(report: Report) -> dict[str, object]:
    return {name: getattr(report, name) for name in report.__slots__}


def _template(name: str, *, autoescape: bool) -> jinja2.Template:
    loader = jinja2.PackageLoader("pipeline.analysis", "templates")
    return jinja2.Environment(loader=loader, autoescape=autoescape, undefined=jinja2.StrictUndefined).get_template(name)


# --------------------------------------------------------------------------- tables


def _answers(found: Comparison) -> ReportTable:
    return ReportTable(
        title="What can be said",
        name="answers",
        headings=("question", "B over A", "verdict", "A", "B"),
        rows=tuple(
            (TITLES[one.estimand], ratio_text(one) or "no ratio", verdict_words(one), one.a, one.b)
            for one in shown_answers(found)
        ),
        notes=(*what_can_be_said(found), *notes(found), *closing_lines(found)),
    )


def _confounders(found: Comparison) -> ReportTable:
    return ReportTable(
        title="What differs besides",
        name="confounders",
        headings=("variable", "class", "A", "B", "what it does"),
        rows=tuple((one.variable.title, one.worst.value, one.a, one.b, one.effect) for one in found.confounders),
    )


def _group_table(groups: Sequence[Group]) -> ReportTable:
    return ReportTable(
        title="Groups",
        name="groups",
        headings=("", "group", "runs", "GPUs", "tokens/s/GPU", "median step (s)", "peak memory (GiB)", "planned (GiB)"),
        rows=tuple(_group_row(group) for group in groups),
        notes=_assumed(groups),
    )


def _run_tables(groups: Sequence[Group]) -> Iterator[ReportTable]:
    yield ReportTable(
        title="Runs",
        name="runs",
        headings=("run", "state", "seed", "tokens/s/GPU", "steady steps", "last loss", "nodes", "code"),
        rows=tuple(_run_row(run) for group in groups for run in group.runs),
    )
    yield ReportTable(
        title="Where ranks ran",
        name="binding",
        headings=("run", "node", "flags", "rank", "GPU", "NUMA", "CPUs", "memory", "NICs"),
        rows=tuple(_binding_rows(groups)),
    )


def _group_row(group: Group) -> tuple[str, ...]:
    steps = [run.step_s for run in group.runs if run.step_s]
    peaks = [run.peak_memory_gib for run in group.runs if run.peak_memory_gib]
    plan = group.runs[0].plan
    planned = plan.memory.worst if plan and plan.memory else None
    return (
        group.mark,
        group.label,
        str(len(group.runs)),
        str(group.gpus),
        estimate_text(group.rate()),
        f"{sum(steps) / len(steps):.4g}" if steps else "not measured",
        f"{max(peaks):.1f}" if peaks else "not measured",
        f"{planned.point_gib:.1f} ({planned.lower_gib:.1f} to {planned.upper_gib:.1f})" if planned else "no estimate",
    )


def estimate_text(found: Estimate | None) -> str:
    """1,234 [1,200, 1,270]."""
    if found is None:
        return "not measured"
    digits = 0 if found.mean >= 100 else 2
    return f"{found.mean:,.{digits}f} [{found.low:,.{digits}f}, {found.high:,.{digits}f}]"


def _assumed(groups: Sequence[Group]) -> tuple[str, ...]:
    few = [group.mark for group in groups if (rate := group.rate()) and rate.assumed]
    return (f"intervals that assume 3 % between runs, since there are fewer than 3: {', '.join(few)}",) if few else ()


def _run_row(run: RunFacts) -> tuple[str, ...]:
    loss = run.curves.get(LOSS)
    return (
        run.name,
        run.state,
        "" if run.seed is None else str(run.seed),
        f"{run.tokens_per_s_per_gpu:,.1f}" if run.tokens_per_s_per_gpu else "not measured",
        str(len(run.steady_step_s)),
        f"{loss.values[-1]:.4f} at step {loss.steps[-1]}" if loss else "",
        ", ".join(run.nodes),
        str(run.factors.get("code", "")),
    )


def _binding_rows(groups: Sequence[Group]) -> Iterator[tuple[str, ...]]:
    """Of the first run of each group: repeats are bound alike, and where they aren't `himori diff` says so."""
    for group in groups:
        run = group.runs[0]
        for node in run.bindings:
            flags = ", ".join(node.flags) + (f"; not as planned: ranks {node.red}" if node.red else "")
            for place in node.ranks:
                seat = (place.gpu, place.home, place.cpus, place.memory, place.nics)
                yield (run.name, node.node, flags, str(place.rank), *seat)


def _label(arm: Sequence[RunFacts]) -> str:
    first = arm[0]
    name = str(first.config.get("name", first.name))
    return f"{name}, {first.gpus} x {first.factors.get('gpu')}"


# --------------------------------------------------------------------------- plots


def _plots(groups: Sequence[Group]) -> tuple[tuple[Plot, ...], tuple[str, ...]]:
    """The plots there are data for, and the names of the others."""
    wanted = (
        ("loss-tokens", plots.loss_over_tokens(groups), "Loss over tokens", "no loss was recorded"),
        ("loss-time", plots.loss_over_time(groups), "Loss over training time without waiting", "no loss was recorded"),
        ("throughput", plots.throughput(groups), "Throughput: runs (dots), mean and 95 % interval (diamonds)",
         "no run was timed"),
        ("memory", plots.memory(groups), "Peak memory (dot) against the plan (bar: bounds, tick: expected) and the GPU",
         "no plan estimates memory here"),
        ("pareto", plots.pareto(groups), "Cost against speed: below right is better", "fewer than two groups"),
        ("scaling", plots.scaling(groups), "Rate of one GPU over the number of GPUs", "one size only"),
        ("power", plots.power(groups), "Power of every GPU; bands: clocks held down", "power was not sampled"),
        ("temperature", plots.temperature(groups), "Temperature of every GPU; bands: clocks held down",
         "temperature was not sampled"),
    )  # fmt: skip
    titles = {"loss-tokens": "loss over tokens", "loss-time": "loss over time"}
    drawn = tuple(Plot(name=name, svg=svg, caption=caption) for name, svg, caption, _ in wanted if svg is not None)
    missing = tuple(f"{titles.get(name, name)} ({why})" for name, svg, _, why in wanted if svg is None)
    return drawn, missing
