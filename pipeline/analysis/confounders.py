"""What differs between two arms besides what is compared, and what each difference does to each question (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.analysis.facts import RunFacts
from pipeline.analysis.roles import BY_KEY, TUNED, VARIABLES, Estimand, Role, Severity, Variable

NOT_RECORDED = "not recorded"
_LONG_WORDS = 6
_SAME_WORK = 0.01
"""Relative difference up to which two arms do the same work a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confounder:
    """One variable in which the arms differ, or of which nobody knows whether they do."""

    variable: Variable
    a: str
    b: str
    severity: Mapping[Estimand, Severity]
    effect: str

    @property
    def is_unknown(self) -> bool:
        """Whether an arm didn't record it."""
        return NOT_RECORDED in (self.a, self.b)

    @property
    def worst(self) -> Severity:
        """What it does to throughput, the question that everything else rests on."""
        return self.severity[Estimand.throughput]

    def __str__(self) -> str:
        if self.a == self.b == NOT_RECORDED:
            return f"{self.variable.title}: recorded in neither"
        return f"{self.variable.title}: {self.a} vs {self.b}"


def values_of(runs: Sequence[RunFacts], key: str) -> str:
    """The values an arm has of a variable."""
    found = dict.fromkeys(str(run.factors[key]) if key in run.factors else NOT_RECORDED for run in runs)
    return ", ".join(found)


def differing(a: Sequence[RunFacts], b: Sequence[RunFacts]) -> list[Variable]:
    """Variables that are not one recorded value in both arms; what neither recorded counts where it is needed."""
    return [one for one in VARIABLES if _differs(one, a, b)]


def _differs(variable: Variable, a: Sequence[RunFacts], b: Sequence[RunFacts]) -> bool:
    found_a, found_b = ({run.factors.get(variable.key) for run in arm} for arm in (a, b))
    if found_a == found_b == {None}:
        return variable.role is Role.block and variable.key != "model_shape"
    if variable.key == "model_shape" and None in found_a | found_b:
        return False
    return found_a != found_b or (len(found_a) > 1 and variable.role is Role.block)


def treatment_of(variables: Sequence[Variable], a: Sequence[RunFacts], b: Sequence[RunFacts]) -> Variable | None:
    """What is compared: the GPU where it differs, else the node type, else the only thing that differs."""
    known = [one for one in variables if NOT_RECORDED not in (values_of(a, one.key), values_of(b, one.key))]
    differ = {one.key for one in known}
    for key in ("gpu", "platform"):
        if key in differ:
            return BY_KEY[key]
    weighty = [one for one in known if one.role in (Role.block, Role.correctable) and one.key != "nodes"]
    if "gpus" in differ and _same_work(a, b):  # weak scaling: the batch grows with the GPUs
        weighty = [one for one in weighty if one.key != "global_batch"]
    if len(weighty) == 1 and weighty[0].key != "model_shape":
        return weighty[0]
    if weighty:
        return None
    for key in (*TUNED, "software", "driver", "code", "binding"):
        if key in differ:
            return BY_KEY[key]
    return None


def confounders(
    a: Sequence[RunFacts], b: Sequence[RunFacts], treatment: Variable | None, variables: Sequence[Variable]
) -> tuple[Confounder, ...]:
    """Every difference but the treatment, gravest first."""
    others = [one for one in variables if not _belongs_to(one, treatment)]
    found = [_confounder(one, a, b) for one in others]
    order = list(Severity)
    return tuple(sorted(found, key=lambda one: order.index(one.worst)))


def _belongs_to(variable: Variable, treatment: Variable | None) -> bool:
    """A GPU comes with its node, and a model with its shape."""
    together = {"gpu": ("gpu", "platform"), "model": ("model", "model_shape"), "gpus": ("gpus", "nodes")}
    return treatment is not None and variable.key in together.get(treatment.key, (treatment.key,))


def _confounder(variable: Variable, a: Sequence[RunFacts], b: Sequence[RunFacts]) -> Confounder:
    value_a, value_b = values_of(a, variable.key), values_of(b, variable.key)
    severity = {estimand: variable.severity(estimand) for estimand in Estimand}
    effect = variable.effect
    if NOT_RECORDED in (value_a, value_b):
        severity = {estimand: _unknown(variable, known) for estimand, known in severity.items()}
        effect = "nobody recorded it, so it can't be matched"
    elif variable.key == "global_batch" and _same_work(a, b):
        severity |= {one: Severity.disclose for one in (Estimand.throughput, Estimand.flops, Estimand.cost,
                                                        Estimand.energy)}  # fmt: skip
        effect = "the batch of one GPU is the same (weak scaling); changes tokens to the loss"
    elif variable.key == "sequence_length":
        effect = _sequence_effect(a, b) or effect
    shown_a, shown_b = _apart(value_a, value_b)
    return Confounder(variable=variable, a=shown_a, b=shown_b, severity=severity, effect=effect)


def _apart(a: str, b: str) -> tuple[str, str]:
    """Of two long values the first word and the words that differ."""
    words_a, words_b = a.split(), b.split()
    if min(len(words_a), len(words_b)) < _LONG_WORDS:
        return a, b
    common = set(words_a[1:]) & set(words_b[1:])
    shown = (" ".join([words[0], *(word for word in words[1:] if word not in common)]) for words in (words_a, words_b))
    return next(shown), next(shown)


def _unknown(variable: Variable, known: Severity) -> Severity:
    """What is not recorded is no match for a loss; for speed it only matters where speed hangs on it."""
    return known if variable.needed or known is not Severity.correctable else Severity.disclose


def _same_work(a: Sequence[RunFacts], b: Sequence[RunFacts]) -> bool:
    work = [float(run.factors["global_batch"]) / run.gpus for run in (*a, *b) if "global_batch" in run.factors]
    return bool(work) and max(work) <= min(work) * (1 + _SAME_WORK)


def _sequence_effect(a: Sequence[RunFacts], b: Sequence[RunFacts]) -> str | None:
    flops_a, flops_b = a[0].flops_per_token, b[0].flops_per_token
    if not flops_a or not flops_b:
        return None
    return f"FLOPs a token x{flops_b / flops_a:.2f}, already inside FLOP/s; changes what a token learns from"
