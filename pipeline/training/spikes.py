"""Tells a loss that jumps up from one that varies (standard library only)."""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW = 64
_LEAST_LOSSES = 16
_TO_DEVIATIONS = 1.4826
"""Of a normal distribution, standard deviation over median absolute deviation (1 / 0.6745)."""
_LEAST_RELATIVE = 0.02
"""Of the median: a loss that hardly varies doesn't spike by a little."""


class Spikes:
    """Tells a loss that jumps up from one that varies."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    def is_spike(self, loss: float) -> bool:
        """Whether this loss is one; it counts among the recent ones afterwards, unless it is."""
        found = len(self._recent) >= _LEAST_LOSSES and loss > self.bound()
        if not found:
            self._recent.append(loss)
        return found

    def bound(self) -> float:
        """The largest loss that is none: the median plus that many robust standard deviations."""
        median = statistics.median(self._recent)
        spread = statistics.median(abs(loss - median) for loss in self._recent)
        return median + self._deviations * max(_TO_DEVIATIONS * spread, _LEAST_RELATIVE * abs(median))
