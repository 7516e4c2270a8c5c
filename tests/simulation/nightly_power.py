"""How often the nightly judge cries wolf and how often it sees a slowdown, by simulation; writes a table into a page.

python tests/simulation/nightly_power.py --trials 1000 --write docs/nightly.md
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.analysis.judge import Verdict, judge
from pipeline.analysis.screening import Night, Repeat, baseline_of, screen_alone, smallest_detectable

HISTORY_NIGHTS = 20
WITHIN_NIGHTS = 3
QUIET_NIGHTS = 30
GUARD = 0.03
PAIRS = 3
_START = datetime.date(2026, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What a cluster does to a series, in log units."""

    between: float
    """Standard deviation from night to night."""
    within: float = 0.004
    """Standard deviation from run to run of one night."""
    bad_nights: float = 0.03
    """Share of nights on a node that is 6 % slow."""
    outliers: float = 0.01
    """Share of runs that somebody disturbs, up to 20 %."""
    drift: float = 0.0
    """Change a night."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What came of many trials."""

    false_alarms: float
    """A night."""
    confirmations: float
    """Nights without a change that asked for pairs."""
    detected: dict[float, float]
    """Share of trials that saw a slowdown within three nights, by its size."""
    smallest: float
    """What the judge itself says it could have seen, median."""


class Series:
    """One series of nights."""

    def __init__(self, noise: Noise, repeats: int, generator: np.random.Generator) -> None:
        self.noise, self.repeats, self.generator, self.count = noise, repeats, generator, 0

    def run(self, level: float) -> float:
        """One run at a level."""
        disturbed = self.generator.uniform(0, 0.2) if self.generator.random() < self.noise.outliers else 0.0
        return float(np.exp(level + self.generator.normal(0, self.noise.within) + disturbed))

    def place(self) -> float:
        """What night and node add to all runs of one allocation."""
        bad = 0.06 if self.generator.random() < self.noise.bad_nights else 0.0
        return float(self.generator.normal(0, self.noise.between)) + bad

    def night(self, slowdown: float) -> Night:
        """The next night."""
        self.count += 1
        level = self.place() + slowdown + self.noise.drift * self.count
        repeats = tuple(Repeat(value=self.run(level)) for _ in range(self.repeats))
        return Night(date=_START + datetime.timedelta(days=self.count), repeats=repeats)

    def pairs(self, slowdown: float) -> list[tuple[float, float]]:
        """Interleaved baseline and candidate runs on one allocation."""
        place = self.place()
        return [(self.run(place), self.run(place + slowdown)) for _ in range(PAIRS)]


def verdict(series: Series, history: list[Night], slowdown: float, *, can_confirm: bool) -> tuple[bool, bool]:
    """One night judged: (whether it is called a regression, whether pairs were asked for); it joins the history."""
    night = series.night(slowdown)
    found = judge(history, night, guard=GUARD, can_confirm=can_confirm)
    asked = found.needs_confirmation
    if asked:
        found = judge(history, night, guard=GUARD, pairs=series.pairs(slowdown))
    history.append(night)
    return found.verdict is Verdict.failed, asked


def simulate(
    noise: Noise, *, repeats: int, trials: int, slowdowns: Sequence[float], can_confirm: bool = True, seed: int = 1
) -> Rates:
    """Many series: quiet nights for false alarms, then a step of each size for detection."""
    generator = np.random.default_rng(seed)
    alarms = asked = 0
    smallest = []
    detected = dict.fromkeys(slowdowns, 0)
    for _ in range(trials):
        series = Series(noise, repeats, generator)
        history = [series.night(0.0) for _ in range(HISTORY_NIGHTS)]
        before = list(history)
        baseline = baseline_of(history)
        assert baseline is not None
        alone = screen_alone(baseline, before[-1:]).smallest
        smallest.append(smallest_detectable(baseline) if can_confirm else alone)
        for _ in range(QUIET_NIGHTS):
            alarm, confirmation = verdict(series, history, 0.0, can_confirm=can_confirm)
            alarms, asked = alarms + alarm, asked + confirmation
        for slowdown in slowdowns:
            follow = list(before)
            broken = np.log1p(slowdown)
            seen = [verdict(series, follow, broken, can_confirm=can_confirm)[0] for _ in range(WITHIN_NIGHTS)]
            detected[slowdown] += any(seen)
    nights = trials * QUIET_NIGHTS
    return Rates(
        false_alarms=alarms / nights,
        confirmations=asked / nights,
        detected={size: count / trials for size, count in detected.items()},
        smallest=float(np.median(smallest)),
    )


SLOWDOWNS = (0.01, 0.02, 0.03, 0.05)
CASES = (
    ("0.4 %", Noise(between=0.004), 3, True),
    ("1 %", Noise(between=0.01), 3, True),
    ("1 %, drifting 0.02 % a night", Noise(between=0.01, drift=0.0002), 3, True),
    ("1 %, one repeat", Noise(between=0.01), 1, True),
    ("2 %", Noise(between=0.02), 3, True),
    ("4 %", Noise(between=0.04), 3, True),
    ("1 %, history alone", Noise(between=0.01), 3, False),
)


def table(trials: int) -> Iterator[str]:
    """The page's table, a line at a time."""
    sizes = " | ".join(f"+{size:.0%}" for size in SLOWDOWNS)
    yield f"| noise between nights | repeats | false alarms in 100 nights | nights with pairs | {sizes} | can see |"
    yield "|---" * (5 + len(SLOWDOWNS)) + "|"
    for name, noise, repeats, can_confirm in CASES:
        found = simulate(noise, repeats=repeats, trials=trials, slowdowns=SLOWDOWNS, can_confirm=can_confirm)
        seen = " | ".join(f"{found.detected[size]:.1%}" for size in SLOWDOWNS)
        asked = f"{found.confirmations:.1%}" if can_confirm else "none"
        yield f"| {name} | {repeats} | {100 * found.false_alarms:.2f} | {asked} | {seen} | {found.smallest:.1%} |"


def main() -> None:
    """Prints the table, or writes it between the marks of a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    lines = "\n".join(table(arguments.trials))
    if arguments.write is None:
        print(lines)
        return
    text = arguments.write.read_text(encoding="utf-8")
    marked = re.sub(r"(<!-- power -->\n).*?(\n<!-- /power -->)", lambda m: m[1] + lines + m[2], text, flags=re.S)
    arguments.write.write_text(marked, encoding="utf-8")


if __name__ == "__main__":
    main()
