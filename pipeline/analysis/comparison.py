"""Runs of two arms -> Comparison: matched, confounders named, and only what can be answered answered (pure)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.analysis.adjust import batch_factor
from pipeline.analysis.answers import Answer, Arms, Comparability, Flag, answers
from pipeline.analysis.bounds import Bound, hardware_bound
from pipeline.analysis.confounders import Confounder, confounders, differing, treatment_of
from pipeline.analysis.convergence import common_target
from pipeline.analysis.estimate import ScalingCurve, pool, scaling_curve
from pipeline.analysis.facts import Origin, RunFacts, recipe_hash
from pipeline.analysis.roles import BLOCKS, BY_KEY, TUNED, Estimand, Severity, Variable
from pipeline.errors import UserError

_OVER_RUNS = frozenset({"FINISHED", "CANCELLED", "TIMEOUT"})
"""States whose steady steps are as good as any; a failed run may have limped before it fell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A run that was named but not compared."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two arms and all that can be said of them."""

    a: tuple[RunFacts, ...]
    b: tuple[RunFacts, ...]
    treatment: Variable | None
    """What is compared; None when nothing, or too much, differs."""
    confounders: tuple[Confounder, ...]
    answers: tuple[Answer, ...]
    bound: Bound | None
    matched_sets: int
    """Sets of equal recipes that the ratio is over; 0 when no recipe is in both arms."""
    heterogeneity: float = 0.0
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()

    def answer(self, estimand: Estimand) -> Answer:
        """The answer to one question."""
        return next(one for one in self.answers if one.estimand is estimand)

    @property
    def headline(self) -> Answer:
        """Real time to a loss where it can be had, else throughput."""
        timed = self.answer(Estimand.time_to_loss)
        return timed if timed.ratio is not None else self.answer(Estimand.throughput)


def compare(
    a: Sequence[RunFacts],
    b: Sequence[RunFacts],
    *,
    scaling: Sequence[RunFacts] = (),
    target_loss: float | None = None,
    treatment: str | None = None,
) -> Comparison:
    """Compares arm B with arm A; ratios are B over A.

    `scaling` are further runs that show how the rate a GPU falls with the number of GPUs, `target_loss` the loss to
    be reached (None: the lowest all runs reached), `treatment` the variable in question (None: found by rule).
    Raises UserError when an arm has no run that was measured, or the treatment is no variable.
    """
    if treatment is not None and treatment not in BY_KEY:
        raise UserError(f"--treatment: {treatment!r} is no variable; there are {', '.join(BY_KEY)}")
    used_a, out_a = _usable(a)
    used_b, out_b = _usable(b)
    for name, arm, out in (("A", used_a, out_a), ("B", used_b, out_b)):
        if not arm:
            why = "; ".join(f"{one.name} {one.why}" for one in out) or "nothing was selected"
            raise UserError(f"arm {name} has no run that can be compared: {why}")
        gpus = sorted({str(run.factors.get("gpu")) for run in arm})
        if len(gpus) > 1:
            raise UserError(f"arm {name} mixes GPUs ({', '.join(gpus)}); an arm is of one type, name fewer runs")
    chosen = BY_KEY[treatment] if treatment else None
    pairs, unmatched = _matched(used_a, used_b)
    found = [_compared(one, other, (*a, *b, *scaling), target_loss, chosen) for one, other in pairs]
    whole = found[0] if len(found) == 1 else _pooled(found)
    return replace(whole, left_out=(*out_a, *out_b, *unmatched))


def _compared(
    a: Sequence[RunFacts],
    b: Sequence[RunFacts],
    all_runs: Sequence[RunFacts],
    target_loss: float | None,
    chosen: Variable | None,
) -> Comparison:
    """One matched set, or two arms that don't match."""
    variables = differing(a, b)
    treatment = chosen or treatment_of(variables, a, b)
    found = confounders(a, b, treatment, variables)
    arms = Arms(
        a=tuple(a),
        b=tuple(b),
        confounders=found,
        curve=_curve(a, b, all_runs),
        target_loss=target_loss if target_loss is not None else common_target((*a, *b)),
        batch_factor=batch_factor(a[0], b[0]),
    )
    bound = hardware_bound(a[0].gpu, b[0].gpu, *(str(arm[0].factors.get("precision", "")) for arm in (a, b)))
    given = answers(arms)
    return Comparison(
        a=arms.a,
        b=arms.b,
        treatment=treatment,
        confounders=found,
        answers=given,
        bound=bound,
        matched_sets=int(not any(one.worst is Severity.fatal for one in found)),
        remarks=tuple(_remarks(arms, given, bound)),
    )


# --------------------------------------------------------------------------- which runs


def _usable(runs: Sequence[RunFacts]) -> tuple[list[RunFacts], tuple[LeftOut, ...]]:
    used, out = [], []
    for run in dict.fromkeys(run.name for run in runs):
        facts = next(one for one in runs if one.name == run)
        why = _why_not(facts)
        if why:
            out.append(LeftOut(name=run, why=why))
        else:
            used.append(facts)
    return used, tuple(out)


def _why_not(run: RunFacts) -> str:
    if run.throttled:
        return f"its GPUs were throttled: {run.throttled}"
    if run.origin is Origin.run and run.state not in _OVER_RUNS:
        return f"is {run.state}"
    if run.origin is Origin.run and not run.steady_step_s:
        return "has no steady steps"
    return ""


_Pair = tuple[list[RunFacts], list[RunFacts]]


def _matched(a: Sequence[RunFacts], b: Sequence[RunFacts]) -> tuple[list[_Pair], tuple[LeftOut, ...]]:
    """Pairs of equal recipe, size and software, else of recipe and size, else of recipe, else what differs least."""
    for key_of in (_recipe_size_and_software, _recipe_and_size, lambda run: recipe_hash(run, BLOCKS)):
        groups_a, groups_b = _grouped(a, key_of), _grouped(b, key_of)
        both = [key for key in groups_a if key in groups_b]
        if both:
            pairs = [_best_of(groups_a[key], groups_b[key]) for key in both]
            return pairs, _unmatched(a, b, pairs)
    groups = (_grouped(arm, lambda run: recipe_hash(run, BLOCKS)).values() for arm in (a, b))
    first, second = (list(one) for one in groups)
    nearest = min(((one, other) for one in first for other in second), key=lambda pair: len(differing(*pair)))
    pair = _best_of(*nearest)
    return [pair], _unmatched(a, b, [pair])


def _recipe_size_and_software(run: RunFacts) -> str:
    return f"{_recipe_and_size(run)} {run.factors.get('software')}"


def _recipe_and_size(run: RunFacts) -> str:
    return f"{recipe_hash(run, BLOCKS)} {run.gpus}"


def _grouped(runs: Sequence[RunFacts], key_of: Callable[[RunFacts], str]) -> Mapping[str, list[RunFacts]]:
    groups: dict[str, list[RunFacts]] = defaultdict(list)
    for run in runs:
        groups[key_of(run)].append(run)
    return groups


def _tuning(run: RunFacts) -> str:
    return f"{run.gpus} " + " ".join(str(run.factors.get(key)) for key in TUNED)


def _best_of(a: list[RunFacts], b: list[RunFacts]) -> _Pair:
    """The layout both arms have, else the best of each: best against best, both tuned."""
    tuned_a, tuned_b = _grouped(a, _tuning), _grouped(b, _tuning)
    common = [key for key in tuned_a if key in tuned_b]
    if common:
        key = max(common, key=lambda one: min(len(tuned_a[one]), len(tuned_b[one])))
        return tuned_a[key], tuned_b[key]
    return max(tuned_a.values(), key=_mean_rate), max(tuned_b.values(), key=_mean_rate)


def _mean_rate(runs: Sequence[RunFacts]) -> float:
    return statistics.fmean(run.tokens_per_s_per_gpu or 0.0 for run in runs)


def _unmatched(a: Sequence[RunFacts], b: Sequence[RunFacts], pairs: Sequence[_Pair]) -> tuple[LeftOut, ...]:
    used = {run.name for pair in pairs for arm in pair for run in arm}
    why = "the other arm has no such recipe and size, or another layout was better"
    return tuple(LeftOut(name=run.name, why=why) for run in (*a, *b) if run.name not in used)


# --------------------------------------------------------------------------- corrections and remarks


def _curve(a: Sequence[RunFacts], b: Sequence[RunFacts], runs: Sequence[RunFacts]) -> ScalingCurve | None:
    """How the rate a GPU of the larger arm falls with its size, from runs of its recipe but for the batch."""
    larger = a[0] if a[0].gpus > b[0].gpus else b[0]
    fixed = [key for key in BLOCKS if key not in ("global_batch", "schedule")]
    wanted = [larger.factors.get(key) for key in ("gpu", *fixed)]
    compared_with = {run.name for run in (b if larger is a[0] else a)}  # a curve over both arms would prove itself
    points = {
        run.name: (run.gpus, run.tokens_per_s_per_gpu)
        for run in runs
        if run.name not in compared_with
        and run.tokens_per_s_per_gpu
        and [run.factors.get(key) for key in ("gpu", *fixed)] == wanted
    }
    return scaling_curve([(size, rate) for size, rate in points.values() if rate])


def _remarks(arms: Arms, given: Sequence[Answer], bound: Bound | None) -> list[str]:
    found = []
    by_key = {one.variable.key: one for one in arms.confounders}
    tuned = [str(by_key[key]) for key in TUNED if key in by_key]
    if tuned:
        found.append(f"best against best, each tuned: {'; '.join(tuned)}")
    rate = next(one for one in given if one.estimand is Estimand.flops)
    rate = rate if rate.ratio else given[0]
    if bound and rate.ratio and rate.ratio.value > bound.limit:
        found.append(
            f"EXCEEDS BOUND: measured {rate.ratio.value:.2f}x is more than {bound.limit:.2f}x (1.15 x the larger of "
            f"{bound}); look at what else differs: {'; '.join(map(str, arms.confounders)) or 'nothing recorded does'}"
        )
    if "nodes" in by_key and "1" in (by_key["nodes"].a, by_key["nodes"].b):
        found.append(
            f"one arm stays inside a node ({by_key['nodes']} nodes): only the other pays for traffic between nodes; "
            "run both inside one node to tell the network from the GPU"
        )
    return found


def _pooled(found: Sequence[Comparison]) -> Comparison:
    """Several matched sets as one comparison: geometric means with random effects."""
    first = found[0]
    pooled = []
    heterogeneity = 0.0
    for index, answer in enumerate(first.answers):
        same = [one.answers[index] for one in found]
        ratios = [one.ratio for one in same if one.ratio is not None]
        if not ratios:
            pooled.append(answer)
            continue
        together = pool(ratios)
        if answer.estimand is Estimand.throughput:
            heterogeneity = together.heterogeneity
        each = ", ".join(f"{one.value:.3f}" for one in ratios)
        pooled.append(
            replace(
                answer,
                ratio=together.ratio,
                a="",
                b="",
                comparability=max((one.comparability for one in same if one.ratio), key=list(Comparability).index),
                flags=frozenset[Flag]().union(*(one.flags for one in same)),
                reasons=(f"{len(ratios)} of {len(found)} matched sets: {each}", *_union(one.reasons for one in same)),
            )
        )
    return replace(
        first,
        a=tuple(run for one in found for run in one.a),
        b=tuple(run for one in found for run in one.b),
        confounders=tuple({str(item): item for one in found for item in one.confounders}.values()),
        answers=tuple(pooled),
        matched_sets=len(found),
        heterogeneity=heterogeneity,
        remarks=tuple(_union(one.remarks for one in found)),
    )


def _union(many: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(text for some in many for text in some))
