"""The points of a sweep as one table: what varies, what was planned, what was measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from pipeline.errors import UserError
from pipeline.types import DroppedPoint, Plan, Published

Row = Mapping[str, object]
"""Column name to value; None where there is none."""

REASONS_SHOWN = 12


def plan_columns(plan: Plan) -> dict[str, object]:
    """What a plan says of a point, in columns with units in their names."""
    layout, memory, speed, cost = plan.layout, plan.memory, plan.throughput, plan.cost
    sizes = ("tp", "pp", "vp", "cp", "ep", "dp")
    shown = [f"{size}{getattr(layout, size)}" for size in sizes if getattr(layout, size) > 1]
    return {
        "ranks": layout.ranks,
        "layout": " ".join(shown) or "one rank",
        "fit": memory.fit.value if memory else None,
        "memory_gib": round(memory.worst.point_gib, 1) if memory else None,
        "tokens_per_s": round(speed.tokens_per_s.p50) if speed else None,
        "tokens_per_s_per_gpu": round(speed.tokens_per_s_per_gpu.p50) if speed else None,
        "tflops_per_gpu": round(speed.model_tflops_per_gpu) if speed else None,
        "hours": round(cost.hours.p50, 3) if cost else None,
        "gpu_hours": round(cost.gpu_hours, 2) if cost else None,
        "cost": round(cost.money, 2) if cost and cost.money is not None else None,
    }


def sorted_rows(rows: Sequence[Row], column: str | None) -> list[Row]:
    """Rows by a column, the largest first; `+column` is the smallest first. Raises UserError for one there isn't."""
    if column is None or not rows:
        return list(rows)
    name = column.removeprefix("+")
    if name not in rows[0]:
        raise UserError(f"--sort: no column {name!r}; there are: {', '.join(rows[0])}")
    known = [row for row in rows if row[name] is not None]
    return sorted(known, key=_order(name), reverse=not column.startswith("+")) + [
        row for row in rows if row[name] is None
    ]


def _order(name: str) -> Callable[[Row], tuple[int, float, str]]:
    """Numbers as numbers, also where they were typed; the rest as text after them."""

    def key(row: Row) -> tuple[int, float, str]:
        try:
            return (0, float(str(row[name])), "")
        except ValueError:
            return (1, 0.0, str(row[name]))

    return key


def print_rows(rows: Sequence[Row]) -> None:
    """A table for people; columns without any value are left out."""
    if not rows:
        return
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table(box=None, pad_edge=False)
    for name in columns:
        numeric = all(isinstance(row[name], int | float) for row in rows if row[name] is not None)
        table.add_column(name.rpartition(".")[2], justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 250).print(table)


def published_words(published: Sequence[Published]) -> str | None:
    """What others published about a point, for its row."""
    return "; ".join(one.says for one in published) or None


def print_published(published: Iterable[Published]) -> None:
    """Where published figures come from and what their set-up has that a plan here doesn't."""
    for one in published:
        differs = f"; not the same: {', '.join(one.differs)}" if one.differs else ""
        print(f"published {one.says}: {one.source}{differs}")


def print_left_out(left_out: Sequence[DroppedPoint]) -> None:
    """Points that are not run, those of one reason together."""
    by_reason: dict[str, list[DroppedPoint]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one)
    for reason, points in list(by_reason.items())[:REASONS_SHOWN]:
        print(f"left out  {_points(points)}: {reason}")
    if len(by_reason) > REASONS_SHOWN:
        print(f"left out  for {len(by_reason) - REASONS_SHOWN} more reasons; --json lists all")


def _points(points: Sequence[DroppedPoint]) -> str:
    if len(points) > 1:
        shown = ", ".join(str(one.number) for one in points[:8]) + (" …" if len(points) > 8 else "")
        return f"{len(points)} points ({shown})"
    return f"point {points[0].number} ({' '.join(f'{key}={value}' for key, value in points[0].choices.items())})"


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)


def print_json(rows: Sequence[Row], left_out: Sequence[DroppedPoint], **more: object) -> None:
    """Rows and what was left out, for machines."""
    dropped = [{"number": one.number, **one.choices, "reason": one.reason} for one in left_out]
    print(json.dumps({**more, "points": list(rows), "left_out": dropped}, indent=1))
