"""Plots of a report as inline SVG whose colours are CSS variables, so that one picture serves light and dark pages."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.analysis.convergence import LOSS
from pipeline.analysis.facts import Curve, GpuTrace, RunFacts
from pipeline.analysis.groups import Group

_INK = "#010203"
_GRID = "#010204"
# Stand-ins that are replaced by CSS variables once matplotlib has drawn; the page defines them for both schemes.
_SERIES = [f"#0a0b{index:02x}" for index in range(8)]
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
_POINTS = 400
"""Points of a curve beyond which a page only gets heavier."""


def loss_over_tokens(groups: Sequence[Group]) -> str | None:
    """Loss against tokens consumed, a line a run."""

    def tokens(run: RunFacts, curve: Curve) -> list[float]:
        return [step * (run.tokens_per_step or 1) for step in curve.steps]

    return _curves(groups, tokens, "loss-tokens", "tokens", "loss")


def loss_over_time(groups: Sequence[Group]) -> str | None:
    """Loss against training time: step times summed, waiting not counted."""

    def hours(run: RunFacts, curve: Curve) -> list[float]:
        times = run.curves.get("throughput/step_time_s")
        totals = dict(zip(times.steps, accumulate(times.values), strict=True)) if times else {}
        return [totals.get(step, float("nan")) for step in curve.steps]

    return _curves(groups, hours, "loss-time", "seconds of training", "loss")


def _curves(
    groups: Sequence[Group], xs_of: Callable[[RunFacts, Curve], list[float]], name: str, xlabel: str, ylabel: str
) -> str | None:
    if not any(LOSS in run.curves for group in groups for run in group.runs):
        return None
    with _styled(name):
        figure, axes = _axes(xlabel, ylabel)
        for index, group in enumerate(groups):
            for number, run in enumerate(group.runs):
                curve = run.curves.get(LOSS)
                if curve is None:
                    continue
                xs, ys = _thinned(xs_of(run, curve), curve.values)
                axes.plot(xs, ys, color=_color(index), linewidth=1.2, label=None if number else group.short)
        _legend(axes, groups)
        return _svg(figure)


def throughput(groups: Sequence[Group]) -> str | None:
    """tokens/s/GPU of each run, with the mean of its group and the interval."""
    rates = [(group, rate) for group in groups if (rate := group.rate()) is not None]
    if not rates:
        return None
    with _styled("throughput"):
        figure, axes = _axes("tokens/s/GPU", "", height=0.9 + 0.5 * len(rates))
        for index, (group, rate) in enumerate(rates):
            runs: list[float] = [run.tokens_per_s_per_gpu for run in group.runs if run.tokens_per_s_per_gpu]
            axes.plot(runs, [index] * len(runs), "o", color=_color(index), alpha=0.45, markersize=5)
            axes.errorbar(
                [rate.mean], [index], xerr=[[rate.mean - rate.low], [rate.high - rate.mean]],
                fmt="D", color=_color(index), capsize=4, markersize=5,
            )  # fmt: skip
        axes.set_yticks(range(len(rates)), [group.short for group, _ in rates])
        axes.set_ylim(-0.7, len(rates) - 0.3)
        axes.invert_yaxis()
        return _svg(figure)


def memory(groups: Sequence[Group]) -> str | None:
    """Measured peaks against what was planned, GiB."""
    rows = [
        (group.short, run, run.plan.memory.worst)
        for group in groups
        for run in group.runs[:1]
        if run.plan is not None and run.plan.memory is not None
    ]
    if not rows:
        return None
    with _styled("memory"):
        figure, axes = _axes("GiB of one GPU", "", height=0.9 + 0.5 * len(rows))
        for index, (_, run, stage) in enumerate(rows):
            axes.plot([stage.lower_gib, stage.upper_gib], [index] * 2, color=_color(index), linewidth=5, alpha=0.35)
            axes.plot([stage.point_gib], [index], "|", color=_color(index), markersize=16)
            if run.peak_memory_gib is not None:
                axes.plot([run.peak_memory_gib], [index], "o", color=_color(index))
            if run.memory_capacity_gib is not None:
                axes.axvline(run.memory_capacity_gib, color=_INK, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        return _svg(figure)


def pareto(groups: Sequence[Group]) -> str | None:
    """Cost of a million tokens against the speed of the whole job; without prices GPU-seconds stand for cost."""
    priced = all(group.cost() is not None for group in groups)
    points: list[tuple[Group, float, float]] = []
    for group in groups:
        rate, price_of_tokens = group.rate(), group.cost()
        if rate is not None:
            spent = price_of_tokens.mean if priced and price_of_tokens else 1e6 / rate.mean
            points.append((group, rate.mean * group.gpus, spent))
    if len(points) < 2:
        return None
    with _styled("pareto"):
        price = points[0][0].runs[0].price
        unit = f"{price.currency} a million tokens" if priced and price else "GPU-seconds a million tokens"
        figure, axes = _axes("tokens/s of the whole job", unit)
        front = sorted((speed, cost) for _, speed, cost in points if not _dominated(speed, cost, points))
        axes.plot(*zip(*front, strict=True), color=_INK, linewidth=1, linestyle="--", label="best there is")
        for index, (group, speed, cost) in enumerate(points):
            axes.plot([speed], [cost], "o", color=_color(index), label=group.short)
        axes.legend()
        return _svg(figure)


def _dominated(speed: float, cost: float, points: Sequence[tuple[Group, float, float]]) -> bool:
    return any(other >= speed and price <= cost and (other, price) != (speed, cost) for _, other, price in points)


def scaling(groups: Sequence[Group]) -> str | None:
    """tokens/s/GPU against the number of GPUs, where there are two sizes at least."""
    points = [(group.gpus, rate) for group in groups if (rate := group.rate())]
    if len({size for size, _ in points}) < 2:
        return None
    with _styled("scaling"):
        figure, axes = _axes("GPUs", "tokens/s/GPU")
        for size, rate in points:
            axes.errorbar([size], [rate.mean], yerr=[[rate.mean - rate.low], [rate.high - rate.mean]],
                          fmt="o", color=_color(0), capsize=4)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({size for size, _ in points}), [str(size) for size in sorted({s for s, _ in points})])
        axes.set_ylim(bottom=0)
        return _svg(figure)


def power(groups: Sequence[Group]) -> str | None:
    """Board power of every GPU of each group's first run, with bands where clocks were held down."""
    return _traces(groups, lambda trace: trace.power_watts, "power", "W")


def temperature(groups: Sequence[Group]) -> str | None:
    """Temperature likewise."""
    return _traces(groups, lambda trace: trace.temperature_c, "temperature", "°C")


def _traces(
    groups: Sequence[Group], values_of: Callable[[GpuTrace], Sequence[float | None]], name: str, unit: str
) -> str | None:
    runs = [(index, group.runs[0]) for index, group in enumerate(groups) if group.runs[0].traces]
    if not runs:
        return None
    with _styled(name):
        figure, axes = _axes("seconds of steady training", unit)
        for index, run in runs:
            start = min(trace.times[0] for trace in run.traces)
            for trace in run.traces:
                values = [float("nan") if value is None else value for value in values_of(trace)]
                axes.plot([time - start for time in trace.times], values, color=_color(index), linewidth=1)
            for band in run.bands:
                axes.axvspan(band.begin - start, band.end - start, color=_color(3), alpha=0.15, linewidth=0)
        return _svg(figure)


# --------------------------------------------------------------------------- drawing


def _styled(name: str) -> Any:
    """matplotlib's settings for one plot; its name makes the ids inside the picture its own."""
    settings: Any = {**_STYLE, "svg.hashsalt": name}  # matplotlib types its settings key by key
    return mpl.rc_context(settings)


def _axes(xlabel: str, ylabel: str, *, height: float = 3.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def _legend(axes: Axes, groups: Sequence[Group]) -> None:
    if len(groups) > 1:
        axes.legend()


def _color(index: int) -> str:
    return _SERIES[index % len(_SERIES)]


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Every n-th point, the last one always."""
    stride = -(-len(xs) // _POINTS)
    if stride <= 1:
        return xs, ys
    return [*xs[::stride], xs[-1]], [*ys[::stride], ys[-1]]


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_GRID, "var(--grid)")
    for index, color in enumerate(_SERIES):
        svg = svg.replace(color, f"var(--series-{index})")
    return svg
