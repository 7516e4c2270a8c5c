"""Metric events as points of curves: one point a (key, step), under names and with values MLflow takes."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from pipeline.tracking.journal import Event
from pipeline.tracking.telemetry.readings import KIND as TELEMETRY

NONFINITE_COUNT = "train/nonfinite_count"
REPEAT_TOLERANCE = 1e-3
"""Relative difference up to which a repeated step counts as the same."""
MAX_KEY = 250

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Point:
    """One point to be uploaded; its time is the event's, so that a replay is the same point."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(slots=True)
class _Curve:
    """Steps and values of one key, sorted by step: 16 bytes a point, since a long run has millions."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def put(self, step: int, value: float) -> float | None:
        """Adds a point, or returns the value that stands at this step."""
        place = bisect_left(self.steps, step) if self.steps and step <= self.steps[-1] else len(self.steps)
        if place < len(self.steps) and self.steps[place] == step:
            return self.values[place]
        self.steps.insert(place, step)
        self.values.insert(place, value)
        return None


@dataclass(slots=True)
class Curves:
    """All points of a run seen so far; the first one of a (key, step) stands."""

    points: int = 0
    repeats: int = 0
    """Points that came again and were not taken."""
    repeats_differ: int = 0
    """Those of them whose value differs beyond the tolerance."""
    nonfinite: int = 0
    first_nonfinite_step: int | None = None
    quarantined: dict[str, str] = field(default_factory=dict)
    """What can't be a point and why, by key as it was written."""
    _curves: dict[str, _Curve] = field(default_factory=dict)

    def absorb(self, event: Event) -> list[Point]:
        """The new points of an event of measurements; none of any other event."""
        if event.kind not in ("metrics", TELEMETRY) or (event.kind == TELEMETRY and "values" not in event.data):
            return []
        step, values = event.data.get("step"), event.data.get("values")
        if not isinstance(values, Mapping) or not _is_step(step) or not math.isfinite(event.time):
            self.quarantined["(event)"] = "has no step, values or time"
            return []
        time_ms = max(0, int(event.time * 1000))
        nonfinite_before = self.nonfinite
        points = [self._take(str(key), value, step, time_ms) for key, value in values.items()]
        if self.nonfinite > nonfinite_before:
            points.append(self._take(NONFINITE_COUNT, self.nonfinite, step, time_ms))
        return [point for point in points if point is not None]

    def last(self, key: str) -> float | None:
        """The value at the last step of a curve."""
        curve = self._curves.get(key)
        return curve.values[-1] if curve and curve.values else None

    def _take(self, written_key: str, written_value: object, step: int, time_ms: int) -> Point | None:
        value = _number(written_value)
        if value is None:
            self.quarantined[written_key] = f"{type(written_value).__name__} is not a number"
            return None
        key = metric_key(written_key)
        standing = self._curves.setdefault(key, _Curve()).put(step, value)
        if standing is not None:
            self.repeats += 1
            self.repeats_differ += not _same(standing, value)
            return None
        if not math.isfinite(value):
            self._note_nonfinite(step)
            return None
        self.points += 1
        return Point(key, value, step, time_ms)

    def _note_nonfinite(self, step: int) -> None:
        self.nonfinite += 1
        first = self.first_nonfinite_step
        self.first_nonfinite_step = step if first is None else min(first, step)


def metric_key(written: str) -> str:
    """`written` where MLflow takes it; else what it can take of it and a hash, so that two keys never become one."""
    parts = [part for part in _NOT_ALLOWED.sub("_", written).split("/") if part not in ("", ".", "..")]
    key = posixpath.join(*parts) if parts else "unnamed"
    if key == written and len(key) <= MAX_KEY:
        return key
    digest = hashlib.sha256(written.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{key[: MAX_KEY - 9]}-{digest}"


def _is_step(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _number(value: object) -> float | None:
    """A float; None for what is not a number or too large to be one."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _same(standing: float, value: float) -> bool:
    if math.isnan(standing) or math.isnan(value):
        return math.isnan(standing) and math.isnan(value)
    return math.isclose(standing, value, rel_tol=REPEAT_TOLERANCE, abs_tol=1e-12)
