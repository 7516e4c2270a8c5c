"""Reads what gpu_rows.py measured and prints tokens/s, memory and the ratio to the reference, with 95 % intervals."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

TOKENS_A_STEP = 65_536
WARM_UP_STEPS = 3
REFERENCE = "megatron-lm"

Measured = dict[tuple[str, str], list[dict[str, object]]]


def read(path: Path) -> Measured:
    """Measurements by row and arm, in the order they were taken."""
    found: Measured = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found[one["row"], one["arm"]].append(one)
    return found


def log_step_s(measured: list[dict[str, object]]) -> np.ndarray:
    """Logarithm of the time of all steps after the warm-up, over all turns."""
    steps = [np.asarray(one["step_s"])[WARM_UP_STEPS:] for one in measured if "step_s" in one]
    return np.log(np.concatenate(steps)) if steps else np.empty(0)


def ratio(ours: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Speed of ours over the reference's with its 95 % interval (Welch, on logarithms of step times)."""
    test = stats.ttest_ind(reference, ours, equal_var=False)
    low, high = test.confidence_interval(0.95)
    return float(np.exp(reference.mean() - ours.mean())), float(np.exp(low)), float(np.exp(high))


def table(measured: Measured) -> Table:
    """One line an arm of a row."""
    shown = Table(
        "row", "arm", "turns", "tokens/s", "of reference (95 %)", "allocated / reserved GiB", "planned tokens/s"
    )
    for (row, arm), runs in measured.items():
        done = [one for one in runs if "step_s" in one]
        if not done:
            shown.add_row(row, arm, "0", "failed", "", "", "")
            continue
        ours, reference = log_step_s(done), log_step_s(measured.get((row, REFERENCE), []))
        against = ""
        if arm != REFERENCE and len(reference) > 1 and len(ours) > 1:
            middle, low, high = ratio(ours, reference)
            against = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        speed = TOKENS_A_STEP / np.exp(np.median(ours))
        planned = done[-1].get("planned") or {}
        expected = planned.get("tokens_per_s") if isinstance(planned, dict) else None
        memory = f"{done[-1]['allocated_gib']:.1f} / {done[-1]['reserved_gib']:.1f}"
        shown.add_row(
            row, arm, str(len(done)), f"{speed:,.0f}", against, memory, f"{expected:,.0f}" if expected else "unknown"
        )
    return shown


def main() -> None:
    """Prints the table of one file of measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, help="what gpu_rows.py wrote")
    Console(width=160).print(table(read(parser.parse_args().measured)))


if __name__ == "__main__":
    main()
