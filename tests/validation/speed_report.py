"""Step time: error with and without calibration, whole groups left out, coverage of the intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from tables import percent, quantile, table

from pipeline.planning.calibration import LEVELS, UNCALIBRATED, Calibration
from pipeline.planning.fitting import Observation, fit

_IN_THE_FIT = """\
Corrections are judged by leaving out whole groups: each is predicted from what remains, spreads included.
The dozen parameters that all GPUs share were fitted once to 86 of these configurations (dense, NVIDIA's),
not again for each group: for those the errors are a little optimistic; all other runs are not in it.
All runs of the table that state a step time are in the shipped calibration, so its own plans for these GPUs have seen
them; a correction needs two runs at least.

A GPU and format that was measured is corrected by the median of its runs, with quantiles of runs left out as its
interval. What wasn't measured is corrected by the mean over the GPUs (or kinds of software) that were, each counted
once however many runs it has, and its interval is 1.28 times the root mean square of the errors of whole GPUs left
out: five GPUs have no quantiles. That way of making intervals was chosen among four by the last block of the table
below, so its coverage there is a little optimistic; before, intervals for a GPU left out held 65 % of the tuned dense
runs instead of 80.
"""
Key = Callable[[Observation], object]
_TUNED = "megatron-te"


def speed_sections(seen: Sequence[Observation], with_plots: bool) -> list[str]:
    """All of the report about step time."""
    plots = (
        "![measured against predicted memory](validation/memory.svg)\n\n"
        "![measured against predicted step time](validation/step_time.svg)\n"
    )
    return [
        "## Throughput: step time\n",
        _by_machine(seen),
        _IN_THE_FIT,
        _left_out(seen),
        plots if with_plots else "",
    ]


def _by_machine(seen: Sequence[Observation]) -> str:
    groups: dict[tuple[str, ...], list[Observation]] = defaultdict(list)
    for one in seen:
        groups[one.kind, one.stack, one.gpu, one.rate].append(one)
    loo = dict(_predictions(seen, lambda one: id(one)))
    by_model = dict(_predictions(seen, lambda one: (one.stack, one.gpu, one.rate, one.model)))
    rows = []
    for key, members in sorted(groups.items()):
        rows.append(
            (
                *key,
                len(members),
                _median([one.log_ratio for one in members]),
                _median([loo[id(one)][0] for one in members]),
                _median([by_model[id(one)][0] for one in members]),
            )
        )
    head = (
        "kind",
        "software",
        "GPU",
        "format",
        "n",
        "uncalibrated",
        "calibrated, this run left out",
        "this model left out",
    )
    return "Median absolute error of the step time:\n\n" + table(head, rows)


def _median(errors: Sequence[float]) -> str:
    return percent(quantile([abs(math.exp(-error) - 1) for error in errors], 0.5))


Prediction = tuple[int, tuple[float, bool]]


def _predictions(seen: Sequence[Observation], key: Key) -> list[Prediction]:
    """(id, (log error, inside P10 to P90)) of each observation, its group left out of the whole fit."""
    groups: dict[object, list[Observation]] = defaultdict(list)
    for one in seen:
        groups[key(one)].append(one)
    found: list[Prediction] = []
    for members in groups.values():
        inside = {id(one) for one in members}
        calibration = fit([one for one in seen if id(one) not in inside], "left out")
        found += [(id(one), _judged(one, calibration)) for one in members]
    return found


def _judged(one: Observation, calibration: Calibration) -> tuple[float, bool]:
    keys = one.groups()
    level = max((index for index, key in enumerate(keys) if key in calibration.factors), default=-1)
    factor = calibration.factors.get(keys[level], 0.0) if level >= 0 else 0.0
    spread = calibration.spread(one.kind, one.stack, level)
    error = one.log_ratio - factor
    return error, spread.low <= error <= spread.high


def _left_out(seen: Sequence[Observation]) -> str:
    cases: tuple[tuple[str, Key], ...] = (
        ("one run", id),
        ("a model on a GPU and format", lambda one: (one.stack, one.gpu, one.rate, one.model)),
        ("a GPU and format", lambda one: (one.stack, one.gpu, one.rate)),
        ("a GPU", lambda one: (one.stack, one.gpu)),
    )
    rows = []
    for name, key in cases:
        judged = dict(_predictions(seen, key))
        for kind, tuned in (("dense", True), ("dense", False), ("moe", True), ("moe", False)):
            members = [one for one in seen if one.kind == kind and (one.stack == _TUNED) is tuned]
            if not members:
                continue
            errors = [abs(math.exp(-judged[id(one)][0]) - 1) for one in members]
            covered = sum(judged[id(one)][1] for one in members) / len(members)
            software = _TUNED if tuned else "other software"
            rows.append(
                (
                    name,
                    kind,
                    software,
                    len(members),
                    percent(quantile(errors, 0.5)),
                    percent(quantile(errors, 0.9)),
                    percent(covered),
                )
            )
    head = ("left out", "kind", "software", "n", "median", "P90", "inside P10 to P90")
    return (
        table(head, rows)
        + f"\nLevels of the calibration: {', '.join(LEVELS)}; none before the first is `{UNCALIBRATED.version}`.\n"
    )
