"""When a run reached a loss: tokens and training time until then, from its curve (pure arithmetic)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate

from pipeline.analysis.facts import RunFacts, Target

LOSS = "train/loss"
_STEP_TIME = "throughput/step_time_s"
_WINDOW_SHARE = 0.02
_LEAST_WINDOW = 5


def smoothed(values: Sequence[float]) -> list[float]:
    """Median of the last points, so that no single lucky batch counts as having arrived."""
    window = max(_LEAST_WINDOW, round(len(values) * _WINDOW_SHARE))
    return [statistics.median(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def reached(run: RunFacts, loss: float) -> Target | None:
    """When the smoothed loss first was at or below `loss`; None when it never was, or nobody recorded it."""
    for target in run.targets:
        if abs(target.loss - loss) <= 1e-9 * abs(loss):
            return target
    curve = run.curves.get(LOSS)
    if curve is None or run.tokens_per_step is None:
        return None
    for place, value in enumerate(smoothed(curve.values)):
        if place >= _LEAST_WINDOW - 1 and value <= loss:
            step = curve.steps[place]
            return Target(loss=loss, steps=step, tokens=float(step * run.tokens_per_step), seconds=_seconds(run, step))
    return None


def _seconds(run: RunFacts, step: int) -> float | None:
    """Sum of step times up to a step: waiting, evaluation and checkpoints are not training."""
    curve = run.curves.get(_STEP_TIME)
    if curve is None:
        return None
    totals = dict(zip(curve.steps, accumulate(curve.values), strict=True))
    return totals.get(step)


def common_target(runs: Sequence[RunFacts]) -> float | None:
    """The lowest loss that all runs reached; None when a run has no loss to look at."""
    published = {target.loss for run in runs for target in run.targets}
    if len(published) == 1 and all(run.targets for run in runs):
        return published.pop()
    lowest = [min(smoothed(run.curves[LOSS].values)[_LEAST_WINDOW - 1 :], default=None) for run in runs
              if LOSS in run.curves]  # fmt: skip
    known = [one for one in lowest if one is not None]
    return max(known) if len(known) == len(runs) and known else None
