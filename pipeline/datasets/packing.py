"""Fits pieces of different lengths into rows of one length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], *, room: int) -> list[list[int]]:
    """Rows of pieces, by their numbers, each row at most `room` long: best-fit decreasing (Johnson 1973).

    Pieces longer than a row are the caller's to cut first.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), ascending
    for piece in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        at = bisect_left(free, (lengths[piece], -1))
        if at == len(free):
            rows.append([])
            left, row = room, len(rows) - 1
        else:
            left, row = free.pop(at)
        rows[row].append(piece)
        insort(free, (left - lengths[piece], row))
    return rows
