"""One answer for each question about two arms whose confounders are known (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.analysis.confounders import Confounder
from pipeline.analysis.convergence import reached
from pipeline.analysis.estimate import (
    CROSS_RELEASE_SIGMA,
    FEWEST_RUNS,
    MODEL_SIGMA,
    Ratio,
    ScalingCurve,
    least_efficiency,
    ratio_of,
)
from pipeline.analysis.facts import Origin, RunFacts, Target
from pipeline.analysis.roles import Estimand, Severity

FEWEST_STEPS = 50
"""Steady steps a run should have."""
FEWEST_SEEDS = 3


class Comparability(Enum):
    """What can be made of a question, best first."""

    comparable = "COMPARABLE"
    """Only what is compared differs."""
    corrected = "CORRECTED"
    """A difference was taken out by a measurement, or by the model where it says MODEL_ADJUSTED."""
    bounded = "BOUNDED"
    """A difference can't be taken out, but how much it can have done is known."""
    not_comparable = "NOT_COMPARABLE"


class Flag(Enum):
    """What else has to be known about an answer."""

    indicative = "INDICATIVE"
    """The interval rests on assumptions: few runs, few steps, other software."""
    model_adjusted = "MODEL_ADJUSTED"
    """A model of the step time, or a count of FLOPs, took a difference out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What can be said to one question."""

    estimand: Estimand
    comparability: Comparability
    ratio: Ratio | None = None
    """B over A; None where there is no ratio to give. For BOUNDED its interval spans the bound."""
    a: str = ""
    """The measured value of A with its unit."""
    b: str = ""
    flags: frozenset[Flag] = frozenset()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arms:
    """The two matched arms that a question is asked of."""

    a: tuple[RunFacts, ...]
    b: tuple[RunFacts, ...]
    confounders: tuple[Confounder, ...]
    curve: ScalingCurve | None = None
    """Measured rate a GPU over the number of GPUs, of the arm with more of them."""
    target_loss: float | None = None
    batch_factor: float | None = None
    """Predicted rate of A with B's global batch over that with its own; None: no model of it."""

    @property
    def sizes(self) -> tuple[int, int]:
        """GPUs of A and B."""
        return self.a[0].gpus, self.b[0].gpus


def answers(arms: Arms) -> tuple[Answer, ...]:
    """The answers to all questions, in the order of `Estimand`."""
    return (
        _rate(arms, Estimand.throughput, lambda run: run.tokens_per_s_per_gpu, "tokens/s/GPU"),
        _rate(arms, Estimand.flops, lambda run: run.model_tflops_per_gpu, "TFLOP/s/GPU"),
        _time_to_loss(arms, Estimand.time_to_loss),
        _time_to_loss(arms, Estimand.recipe_time_to_loss),
        _cost(arms),
        _energy(arms),
        _feasibility(arms),
    )


# --------------------------------------------------------------------------- rates


def _rate(arms: Arms, estimand: Estimand, value_of: Callable[[RunFacts], float | None], unit: str) -> Answer:
    values = [[one for run in arm if (one := value_of(run)) is not None] for arm in (arms.a, arms.b)]
    if not all(values):
        return _unanswered(estimand, f"{unit} was not measured in {'A' if not values[0] else 'B'}")
    answer = Answer(
        estimand=estimand,
        comparability=Comparability.comparable,
        ratio=ratio_of(*values, prior=_prior(arms)),
        a=_mean_text(values[0], unit),
        b=_mean_text(values[1], unit),
        flags=_flags(arms),
        reasons=_indicative_reasons(arms),
    )
    if estimand is Estimand.flops and any(one.variable.key == "sequence_length" for one in arms.confounders):
        answer = _model_adjusted(answer, "sequence length is taken out by counting FLOPs, the same way for both")
    return _judged(answer, arms)


def _judged(answer: Answer, arms: Arms) -> Answer:
    """The answer after every confounder was met: refused, corrected, bounded or left as it is."""
    fatal = [one for one in arms.confounders if one.severity[answer.estimand] is Severity.fatal]
    if fatal:
        why = tuple(f"{one}: {one.effect}" for one in fatal)
        return replace(answer, comparability=Comparability.not_comparable, ratio=None, reasons=why)
    for one in arms.confounders:
        if one.severity[answer.estimand] is Severity.correctable:
            answer = _corrected(answer, one, arms)
    return answer


def _corrected(answer: Answer, confounder: Confounder, arms: Arms) -> Answer:
    if answer.ratio is None:
        return answer
    if confounder.variable.key == "gpus":
        return _scaled(answer, answer.ratio, arms)
    if confounder.variable.key == "global_batch" and arms.batch_factor is not None:
        ratio = answer.ratio.scaled(1 / arms.batch_factor, MODEL_SIGMA)
        text = f"{confounder}: the step-time model takes it out, x{1 / arms.batch_factor:.3f}"
        return _model_adjusted(replace(answer, ratio=ratio), text)
    why = f"{confounder}: {confounder.effect}, and nothing measured takes it out"
    return replace(answer, comparability=Comparability.not_comparable, ratio=None, reasons=(*answer.reasons, why))


def _scaled(answer: Answer, ratio: Ratio, arms: Arms) -> Answer:
    """Both at the size of the smaller arm: by the measured curve of the larger one, else by the worst seen anywhere."""
    size_a, size_b = arms.sizes
    small, large = min(size_a, size_b), max(size_a, size_b)
    if arms.curve and arms.curve.covers(small) and arms.curve.covers(large):
        efficiency, sigma = arms.curve.efficiency(large, small)
        ratio = ratio.scaled(efficiency if size_a > size_b else 1 / efficiency, sigma)
        text = (
            f"GPUs: {size_a} vs {size_b}; measured scaling of the larger arm: rate a GPU at {large} over that at "
            f"{small} = {efficiency:.3f} ± {sigma:.3f} ({arms.curve.runs} runs)"
        )
        worst = max((answer.comparability, Comparability.corrected), key=list(Comparability).index)
        return replace(answer, ratio=ratio, comparability=worst, reasons=(*answer.reasons, text))
    least = least_efficiency(large, small)
    low, high = (ratio.low * least, ratio.high) if size_a > size_b else (ratio.low, ratio.high / least)
    text = (
        f"GPUs: {size_a} vs {size_b}; no scaling curve of the larger arm was given, so its rate a GPU at {small} is "
        f"between 1 and 1/{least:.2f} of that at {large} (the lowest of public curves on InfiniBand)"
    )
    return replace(
        answer,
        ratio=replace(ratio, low=low, high=high, basis=f"{ratio.basis}, widened by the bound"),
        comparability=max((answer.comparability, Comparability.bounded), key=list(Comparability).index),
        reasons=(*answer.reasons, text),
    )


def _model_adjusted(answer: Answer, text: str) -> Answer:
    worst = max((answer.comparability, Comparability.corrected), key=list(Comparability).index)
    flags = answer.flags | {Flag.model_adjusted}
    return replace(answer, comparability=worst, flags=flags, reasons=(*answer.reasons, text))


def _unanswered(estimand: Estimand, *reasons: str) -> Answer:
    return Answer(estimand=estimand, comparability=Comparability.not_comparable, reasons=reasons)


# --------------------------------------------------------------------------- how far to trust it


def _prior(arms: Arms) -> float:
    blurred = any(one.variable.blurs and not one.is_unknown for one in arms.confounders)
    return CROSS_RELEASE_SIGMA if blurred else 0.03


def _flags(arms: Arms) -> frozenset[Flag]:
    return frozenset({Flag.indicative}) if _indicative_reasons(arms) else frozenset()


def _indicative_reasons(arms: Arms) -> tuple[str, ...]:
    found = []
    fewest = min(len(arms.a), len(arms.b))
    if fewest < FEWEST_RUNS:
        found.append(f"{len(arms.a)} and {len(arms.b)} runs; {FEWEST_RUNS} an arm make an interval of their own")
    short = [run for run in (*arms.a, *arms.b) if run.origin is Origin.run and len(run.steady_step_s) < FEWEST_STEPS]
    if short:
        steps = min(len(run.steady_step_s) for run in short)
        found.append(f"{len(short)} runs have fewer than {FEWEST_STEPS} steady steps (fewest {steps})")
    found += [f"{one}: {one.effect}" for one in arms.confounders if one.variable.blurs]
    return tuple(found)


def _mean_text(values: Sequence[float], unit: str) -> str:
    mean = statistics.geometric_mean(values)
    return f"{mean:,.0f} {unit}" if mean >= 1000 else f"{mean:.4g} {unit}"


# --------------------------------------------------------------------------- time to a loss


def _time_to_loss(arms: Arms, estimand: Estimand) -> Answer:
    seeds = [len({run.seed if run.seed is not None else run.name for run in arm}) for arm in (arms.a, arms.b)]
    fatal = tuple(f"{one}: {one.effect}" for one in arms.confounders if one.severity[estimand] is Severity.fatal)
    if arms.target_loss is None:
        return _unanswered(estimand, "no loss was recorded in both arms", *fatal)
    times = [[reached(run, arms.target_loss) for run in arm] for arm in (arms.a, arms.b)]
    spent = [
        [run.gpus * one.seconds for run, one in zip(arm, found, strict=True) if one and one.seconds]
        for arm, found in zip((arms.a, arms.b), times, strict=True)
    ]
    few = (
        ()
        if min(seeds) >= FEWEST_SEEDS
        else (
            f"CONVERGENCE NOT MEASURED: time to a loss can't be derived from step time; {seeds[0]} and {seeds[1]} "
            f"seeds, {FEWEST_SEEDS} an arm are needed",
        )
    )
    late = tuple(
        f"{len(arm) - len(found)} of {len(arm)} runs of {name} have no time for loss {arms.target_loss:.4g}"
        for name, arm, found in zip("AB", (arms.a, arms.b), spent, strict=True)
        if len(found) < len(arm)
    )
    if fatal or few or late:
        return replace(_unanswered(estimand, *few, *late, *fatal), a=_reached_text(times[0]), b=_reached_text(times[1]))
    answer = Answer(
        estimand=estimand,
        comparability=Comparability.comparable,
        ratio=ratio_of(*(_trimmed(one) for one in spent)).inverse,
        a=_mean_text(_trimmed(spent[0]), f"GPU-s to loss {arms.target_loss:.4g}"),
        b=_mean_text(_trimmed(spent[1]), f"GPU-s to loss {arms.target_loss:.4g}"),
        reasons=(f"{seeds[0]} and {seeds[1]} seeds",),
    )
    return _judged(answer, arms)


def _trimmed(values: Sequence[float]) -> list[float]:
    """Without the fastest and the slowest, from five on (MLPerf training's rule)."""
    return sorted(values)[1:-1] if len(values) >= 5 else list(values)


def _reached_text(found: Sequence[Target | None]) -> str:
    parts = [f"{one.steps:,.0f} steps" if one.steps else "" for one in found if one is not None]
    return ", ".join(part for part in parts if part)


# --------------------------------------------------------------------------- cost, energy, what fits


def _cost(arms: Arms) -> Answer:
    prices = [{run.price for run in arm} for arm in (arms.a, arms.b)]
    known = [one for arm in prices for one in arm if one is not None]
    if any(None in arm for arm in prices) or not known:
        return _unanswered(Estimand.cost, "no price; give --price-a and --price-b, or prices in the profiles")
    if len({(one.currency, one.basis) for one in known}) > 1:
        bases = "; ".join(dict.fromkeys(f"{one.currency}, {one.basis}" for one in known))
        return _unanswered(Estimand.cost, f"price basis: {bases}; prices of different bases don't compare: give both "
                           "of one basis with --price-a and --price-b")  # fmt: skip
    unit = f"{known[0].currency} a million tokens"
    rate = _rate(arms, Estimand.cost, lambda run: run.cost_per_token and run.cost_per_token * 1e6, unit)
    return replace(rate, reasons=(*rate.reasons, f"GPU time of steady steps only, {known[0].basis}"))


def _energy(arms: Arms) -> Answer:
    boundaries = {run.energy_boundary for run in (*arms.a, *arms.b) if run.energy_j_per_token}
    if len(boundaries) > 1:
        return _unanswered(Estimand.energy, f"energy was measured at different boundaries: {', '.join(boundaries)}")
    if not all(any(run.energy_j_per_token for run in arm) for arm in (arms.a, arms.b)):
        return _unanswered(Estimand.energy, "energy was not measured in both arms")
    return _rate(arms, Estimand.energy, lambda run: run.energy_j_per_token, f"J a token ({boundaries.pop() or 'GPU'})")


def _feasibility(arms: Arms) -> Answer:
    return Answer(
        estimand=Estimand.feasibility,
        comparability=Comparability.comparable,
        a=_fits_text(arms.a),
        b=_fits_text(arms.b),
        reasons=("a capability in its own units; it must not be multiplied into a speed-up",),
    )


def _fits_text(arm: Sequence[RunFacts]) -> str:
    run = max(arm, key=lambda one: one.peak_memory_gib or 0.0)
    shape = ", ".join(
        f"{title} {run.factors[key]}"
        for key, title in (
            ("sequence_length", "sequence"),
            ("micro_batch", "micro-batch"),
            ("techniques", "techniques"),
        )
        if key in run.factors
    )
    of = f" of {run.memory_capacity_gib:.1f}" if run.memory_capacity_gib else ""
    peak = "its peak was not measured" if run.peak_memory_gib is None else f"peak {run.peak_memory_gib:.1f}{of} GiB"
    return f"ran with {shape or 'a shape nobody recorded'}; {peak}"
