"""Markdown tables and order statistics of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of them lie (the next higher one)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def percent(value: float, *, signed: bool = False) -> str:
    """0.0123 as 1.2 %."""
    return f"{100 * value:{'+' if signed else ''}.1f} %"


def summary(errors: Sequence[float]) -> tuple[str, str, str, str]:
    """(median, P95, worst of the absolute errors, median with its sign)."""
    absolute = [abs(error) for error in errors]
    return (
        percent(quantile(absolute, 0.5)),
        percent(quantile(absolute, 0.95)),
        percent(max(absolute)),
        percent(quantile(errors, 0.5), signed=True),
    )
