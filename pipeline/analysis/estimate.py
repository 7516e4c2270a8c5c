"""Ratios of two arms with an interval over runs, and what several matched sets say together (pure arithmetic).

The run is the unit: steps of one run share its nodes, clocks and neighbours, so they tell nothing about the next run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

FEWEST_RUNS = 3
"""Runs an arm needs for an interval of its own."""
PRIOR_SIGMA = 0.03
"""Run-to-run standard deviation, in log units, where too few runs show their own (1 to 4 % on real clusters)."""
CROSS_RELEASE_SIGMA = 0.037
"""Median move of one dense configuration between public software releases."""
MODEL_SIGMA = 0.07
"""Error of one prediction of the step-time model, in log units."""
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """B over A with its 95 % interval."""

    value: float
    low: float
    high: float
    sigma: float
    """Standard error of its logarithm."""
    runs_a: int
    runs_b: int
    basis: str
    """Where the interval comes from."""

    def scaled(self, factor: float, sigma: float = 0.0) -> Ratio:
        """Times a factor whose logarithm has a standard error of its own."""
        wider = math.hypot(self.sigma, sigma) / self.sigma if self.sigma else 1.0
        value = self.value * factor
        return Ratio(
            value=value,
            low=value * (self.low / self.value) ** wider,
            high=value * (self.high / self.value) ** wider,
            sigma=math.hypot(self.sigma, sigma),
            runs_a=self.runs_a,
            runs_b=self.runs_b,
            basis=self.basis,
        )

    @property
    def inverse(self) -> Ratio:
        """A over B."""
        return Ratio(
            value=1 / self.value,
            low=1 / self.high,
            high=1 / self.low,
            sigma=self.sigma,
            runs_a=self.runs_b,
            runs_b=self.runs_a,
            basis=self.basis,
        )


def ratio_of(a: Sequence[float], b: Sequence[float], *, prior: float = PRIOR_SIGMA) -> Ratio:
    """The ratio of the arms' geometric means, b over a.

    With three runs an arm the interval is Welch's, on logarithms; with fewer it rests on `prior`, or on the spread
    seen where that is larger.
    """
    logs_a, logs_b = [math.log(one) for one in a], [math.log(one) for one in b]
    if min(len(a), len(b)) >= FEWEST_RUNS:
        sigma, quantile = _welch(logs_a, logs_b)
        basis = f"spread of {len(a)} and {len(b)} runs"
    else:
        spread = max([prior, *(statistics.stdev(logs) for logs in (logs_a, logs_b) if len(logs) > 1)])
        sigma, quantile = spread * math.sqrt(1 / len(a) + 1 / len(b)), 1.96
        basis = f"an assumed {spread:.1%} between runs: {len(a)} and {len(b)} runs, {FEWEST_RUNS} an arm show their own"
    center = statistics.fmean(logs_b) - statistics.fmean(logs_a)
    return _ratio(center, sigma, quantile, len(a), len(b), basis)


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """(standard error, t quantile) of the difference of two means with unequal variances (Welch 1947)."""
    parts = [statistics.variance(one) / len(one) for one in (a, b)]
    total = sum(parts)
    if total == 0:
        return 0.0, 0.0
    freedom = total**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (a, b), strict=True))
    return math.sqrt(total), float(student.ppf((1 + _LEVEL) / 2, freedom))


def _ratio(center: float, sigma: float, quantile: float, runs_a: int, runs_b: int, basis: str) -> Ratio:
    half = sigma * quantile
    return Ratio(
        value=math.exp(center),
        low=math.exp(center - half),
        high=math.exp(center + half),
        sigma=sigma,
        runs_a=runs_a,
        runs_b=runs_b,
        basis=basis,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """What several matched sets say together."""

    ratio: Ratio
    sets: int
    heterogeneity: float
    """I²: share of the spread between sets that their own intervals don't explain, 0 to 1."""


def pool(ratios: Sequence[Ratio]) -> Pooled:
    """Geometric mean over sets with random effects (DerSimonian and Laird 1986); never the mean of ratios."""
    logs = [math.log(one.value) for one in ratios]
    variances = [max(one.sigma, 1e-9) ** 2 for one in ratios]
    fixed, weights = _weighted(logs, variances)
    spread = sum(weight * (one - fixed) ** 2 for one, weight in zip(logs, weights, strict=True))
    freedom = len(ratios) - 1
    scale = sum(weights) - sum(weight**2 for weight in weights) / sum(weights)
    between = max(0.0, (spread - freedom) / scale) if freedom else 0.0
    center, weights = _weighted(logs, [variance + between for variance in variances])
    return Pooled(
        ratio=_ratio(
            center,
            1 / math.sqrt(sum(weights)),
            1.96,
            sum(one.runs_a for one in ratios),
            sum(one.runs_b for one in ratios),
            f"random effects over {len(ratios)} matched sets",
        ),
        sets=len(ratios),
        heterogeneity=max(0.0, (spread - freedom) / spread) if spread > 0 else 0.0,
    )


def _weighted(logs: Sequence[float], variances: Sequence[float]) -> tuple[float, list[float]]:
    weights = [1 / variance for variance in variances]
    return sum(one * weight for one, weight in zip(logs, weights, strict=True)) / sum(weights), weights


# --------------------------------------------------------------------------- scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """log(rate a GPU) = intercept + slope * log2(GPUs), from runs of one arm at several sizes."""

    slope: float
    slope_sigma: float
    sizes: tuple[int, ...]
    runs: int

    def efficiency(self, size: int, reference: int) -> tuple[float, float]:
        """(rate a GPU at `size` over that at `reference`, standard error of its logarithm)."""
        doublings = math.log2(size / reference)
        return math.exp(self.slope * doublings), abs(doublings) * self.slope_sigma

    def covers(self, size: int) -> bool:
        """Whether a size lies within what was measured."""
        return self.sizes[0] <= size <= self.sizes[-1]


def scaling_curve(points: Sequence[tuple[int, float]]) -> ScalingCurve | None:
    """Least squares over (GPUs, tokens/s/GPU) of single runs; None when there is but one size."""
    sizes = sorted({size for size, _ in points})
    if len(sizes) < 2:
        return None
    xs, ys = [math.log2(size) for size, _ in points], [math.log(rate) for _, rate in points]
    fit = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(xs)
    spread = sum((x - mean) ** 2 for x in xs)
    residual = sum((y - fit.slope * x - fit.intercept) ** 2 for x, y in zip(xs, ys, strict=True))
    noise = max(residual / (len(xs) - 2) if len(xs) > 2 else 0.0, PRIOR_SIGMA**2 if len(xs) < 6 else 0.0)
    return ScalingCurve(slope=fit.slope, slope_sigma=math.sqrt(noise / spread), sizes=tuple(sizes), runs=len(points))


LEAST_EFFICIENCY = 0.90
"""Weak-scaling efficiency over a factor of up to 32 in GPUs: 5 B 1 to 32 nodes .90, 175 B 8 to 128 nodes .91 (A100,
InfiniBand; NVIDIA NeMo launcher), Nemotron 15 B 16 to 2048 H100 .97 (NVIDIA dgxc-benchmarking)."""


def least_efficiency(size: int, reference: int) -> float:
    """The lowest efficiency to reckon with between two sizes where nobody measured the curve."""
    factor = max(size, reference) / min(size, reference)
    return float(LEAST_EFFICIENCY ** max(1.0, math.log(factor) / math.log(32)))
