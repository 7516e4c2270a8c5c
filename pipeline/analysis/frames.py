"""Runs, curves and comparisons as data frames, for notebooks and for CSV and Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.analysis.compare_text import answer_json
from pipeline.analysis.comparison import Comparison
from pipeline.analysis.comparison import compare as compare_runs
from pipeline.analysis.facts import RunFacts, recipe_hash
from pipeline.analysis.roles import BLOCKS
from pipeline.analysis.selection import all_runs, select_runs

Selected = str | Sequence[RunFacts]
"""What names runs: a selector as on the command line, or facts."""


def runs_frame(runs: Selected | None = None, run_root: str | Path = "runs") -> pd.DataFrame:
    """A row a run: what it was (variables by key), what came out; None takes all runs of the run root."""
    chosen = all_runs(Path(run_root)) if runs is None else _facts(runs, run_root)
    return pd.DataFrame.from_records([_row(run) for run in chosen])


def curves_frame(runs: Selected, keys: Sequence[str] = ("train/loss",), run_root: str | Path = "runs") -> pd.DataFrame:
    """A row a point: run, seed, key, step, tokens, value, time (seconds since the run's first word)."""
    rows = [
        (run.name, run.seed, key, step, step * (run.tokens_per_step or 0), value, time - (run.started or time))
        for run in _facts(runs, run_root)
        for key in keys
        if (curve := run.curves.get(key)) is not None
        for step, value, time in zip(curve.steps, curve.values, curve.times, strict=True)
    ]
    return pd.DataFrame(rows, columns=["run", "seed", "key", "step", "tokens", "value", "time_s"])


def compare(a: Selected, b: Selected, run_root: str | Path = "runs", **options: object) -> Comparison:
    """B against A as on the command line; `answers_frame` shows what can be said. Options as `comparison.compare`."""
    return compare_runs(_facts(a, run_root), _facts(b, run_root), **options)  # type: ignore[arg-type]


def answers_frame(found: Comparison) -> pd.DataFrame:
    """A row a question: verdict, ratio with its interval, values of both arms."""
    rows = [{"question": one.estimand.value, **answer_json(one)} for one in found.answers]
    return pd.DataFrame(rows).set_index("question")


def _facts(runs: Selected, run_root: str | Path) -> Sequence[RunFacts]:
    return select_runs(runs, Path(run_root)) if isinstance(runs, str) else runs


def _row(run: RunFacts) -> dict[str, object]:
    loss = run.curves.get("train/loss")
    return {
        "run": run.name,
        "origin": run.origin.value,
        "state": run.state,
        "recipe": recipe_hash(run, BLOCKS),
        "seed": run.seed,
        **run.factors,
        "gpus": run.gpus,
        "tokens_per_s_per_gpu": run.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": run.model_tflops_per_gpu,
        "step_s": run.step_s,
        "steady_steps": len(run.steady_step_s),
        "startup_s": run.startup_s,
        "peak_memory_gib": run.peak_memory_gib,
        "last_loss": loss.values[-1] if loss else None,
        "cost_per_token": run.cost_per_token,
        "energy_j_per_token": run.energy_j_per_token,
        "source": run.source,
    }
