"""Scatter plots of predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from memory_report import stage_of
from records import Record

from pipeline.planning.fitting import Observation, fit

mpl.use("svg")
from matplotlib import pyplot as plt

mpl.rcParams["svg.hashsalt"] = "himori"  # the same picture from the same numbers


def write_plots(records: Sequence[Record], seen: Sequence[Observation], folder: Path | None) -> None:
    """memory.svg and step_time.svg in `folder`."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    _memory(records, folder / "memory.svg")
    _step_time(seen, folder / "step_time.svg")


def _memory(records: Sequence[Record], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 5))
    for name in sorted({one.family for one in records if one.memory_gib and not one.reserved and one.family != "card"}):
        mine = [one for one in records if one.family == name and one.memory_gib and one.index != 555]
        axes.scatter([one.memory_gib for one in mine], [stage_of(one).allocated_gib for one in mine], s=14, label=name)
    axes.plot([20, 160], [20, 160], color="grey", linewidth=0.8)
    axes.set(xlabel="measured, GiB allocated", ylabel="predicted", xscale="log", yscale="log")
    _save(figure, axes, file)


def _step_time(seen: Sequence[Observation], file: Path) -> None:
    calibration = fit(seen, "all")
    figure, axes = plt.subplots(figsize=(6, 5))
    for kind in ("dense", "moe"):
        mine = [one for one in seen if one.kind == kind and one.stack == "megatron-te"]
        raw = [100 * (math.exp(-one.log_ratio) - 1) for one in mine]
        fixed = [100 * (math.exp(calibration.factor(one.groups()[:3]) - one.log_ratio) - 1) for one in mine]
        axes.scatter(raw, fixed, s=14, label=f"{kind}, Megatron with TE")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="error of the step time, uncalibrated, %", ylabel="after correction for GPU and format, %")
    _save(figure, axes, file)


def _save(figure: plt.Figure, axes: plt.Axes, file: Path) -> None:
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
