"""Matched pairs among published rows: one model, size, batch, sequence, precision and release on two GPUs (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.analysis.facts import RunFacts

_EQUAL = ("model", "task", "sequence_length", "global_batch", "precision", "gpus", "software")


def matched_ratios(rows: Sequence[RunFacts], gpu_a: str, gpu_b: str) -> list[float]:
    """tokens/s/GPU on `gpu_b` over that on `gpu_a`, one a matched pair."""
    slow, fast = _rates(rows, gpu_a), _rates(rows, gpu_b)
    return [fast[key] / slow[key] for key in slow if key in fast]


def _rates(rows: Sequence[RunFacts], gpu: str) -> dict[tuple[object, ...], float]:
    found: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row.factors.get("gpu") == gpu and row.tokens_per_s_per_gpu:
            found[tuple(row.factors.get(key) for key in _EQUAL)] = row.tokens_per_s_per_gpu
    return found
