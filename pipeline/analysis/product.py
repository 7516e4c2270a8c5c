"""A claimed product of factors taken apart: what was given, what came out, what can be hardware (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from pipeline.analysis.bounds import Bound
from pipeline.analysis.facts import RunFacts
from pipeline.errors import UserError


class Kind(Enum):
    """What a factor of a claim is."""

    given = "given"
    """Somebody chose it: it explains, it isn't explained."""
    speed = "speed"
    """An outcome: work done in a time. All of these have one cause, so no two may be multiplied."""
    convergence = "convergence"
    """An outcome of the recipe: tokens to a loss."""
    capability = "capability"
    """What fits; reported in its own units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """Something a factor may be of."""

    name: str
    kind: Kind
    words: str
    """Regular expression of what people call it."""
    objection: str
    smaller_is_better: bool = False


TERMS: tuple[Term, ...] = (
    Term(name="nodes", kind=Kind.given, words=r"nodes?|machines?|servers?", smaller_is_better=True,
         objection="was chosen: a rate per GPU has it inside already, a rate of the whole job is divided by it once"),
    Term(name="GPUs", kind=Kind.given, words=r"gpus?|devices?|accelerators?|chips?", smaller_is_better=True,
         objection="was chosen: a rate per GPU has it inside already, a rate of the whole job is divided by it once"),
    Term(name="sequence length", kind=Kind.given, words=r"sequences?|seq|context",
         objection="was chosen: a longer one costs more FLOPs a token, which FLOP/s counts already; tokens/s falls"),
    Term(name="batch", kind=Kind.given, words=r"batch|global[ _]batch|micro[ _-]?batch",
         objection="was chosen: it changes tokens to the loss, and a rate has it inside already"),
    Term(name="precision", kind=Kind.given, words=r"precision|bits|fp8|fp4|bf16",
         objection="was chosen: the rate measured with it has it inside already"),
    Term(name="power", kind=Kind.given, words=r"power|watts?", smaller_is_better=True,
         objection="is a limit that was set; energy a token is the outcome"),
    Term(name="FLOP/s", kind=Kind.speed, words=r"flops?(/s)?|tflops?(/s)?|mfu|compute",
         objection="is an outcome: what hardware, software and layout did together"),
    Term(name="tokens/s", kind=Kind.speed, words=r"tokens?(/s)?|throughput|speed|samples?/s|step[ _]?time|faster|time",
         objection="is an outcome: what hardware, software and layout did together"),
    Term(name="cost", kind=Kind.speed, words=r"cost|price|dollars?|\$|yen", smaller_is_better=True,
         objection="follows from the rate and a price; multiplied with a rate it counts the rate twice"),
    Term(name="energy", kind=Kind.speed, words=r"energy|joules?|kwh", smaller_is_better=True,
         objection="follows from the rate and power; multiplied with a rate it counts the rate twice"),
    Term(name="convergence", kind=Kind.convergence, words=r"convergence|iterations?|steps?|epochs?|loss",
         objection="belongs to the recipe (optimizer, batch, precision, data): the other hardware can have it too"),
    Term(name="memory", kind=Kind.capability, words=r"memory|capacity|model[ _]size|parameters?",
         objection="is a capability: what fits is said in its own units"),
)  # fmt: skip

_NUMBER = r"\d+(?:\.\d+)?(?:\s*/\s*\d+(?:\.\d+)?)?"
_FACTOR = re.compile(
    rf"(?P<value>{_NUMBER})\s*[x×]?\s+(?P<words>.+)|(?P<named>[^=:]+)[=:]\s*(?P<after>{_NUMBER})\s*[x×]?"
)
_HEAD = re.compile(
    rf"^\s*(?P<b>[\w .-]+?)\s+(?:is|=)\s+(?P<total>{_NUMBER})\s*[x×]?\s*(?:an?\s+|the\s+)?(?P<a>[\w .-]+?)\s*:"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One factor of a claim."""

    term: Term
    value: float
    """As it was written."""

    @property
    def counted(self) -> float:
        """What it multiplies the claim by: half the nodes is counted as twice."""
        return 1 / self.value if self.term.smaller_is_better and self.value < 1 else self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claimed product."""

    text: str
    a: str
    """What it is measured against, as written; empty where nobody said."""
    b: str
    total: float | None
    factors: tuple[Factor, ...]

    @property
    def product(self) -> float:
        """What the factors make."""
        result = 1.0
        for factor in self.factors:
            result *= factor.counted
        return result

    def of(self, *kinds: Kind) -> tuple[Factor, ...]:
        """The factors of some kinds."""
        return tuple(factor for factor in self.factors if factor.term.kind in kinds)


def parse_claim(text: str) -> Claim:
    """Reads `B200 is 20x an H100: 1/2 nodes x 2 sequence x 2.5 FLOP/s`; the part before `:` may be left out.

    Raises UserError naming the factor that can't be read.
    """
    head = _HEAD.match(text)
    body = text[head.end() :] if head else text
    parts = [part.strip() for part in re.split(r"\s+[x×*·]\s+|\s*[×*·;,]\s*|\s+times\s+", body) if part.strip()]
    if not parts:
        raise UserError(
            f"--explain-product: {text!r} names no factor; for example '1/2 nodes x 2 sequence x 2.5 FLOP/s'"
        )
    return Claim(
        text=" x ".join(parts),
        a=head["a"].strip() if head else "",
        b=head["b"].strip() if head else "",
        total=_number(head["total"]) if head else None,
        factors=tuple(_factor(part) for part in parts),
    )


def _factor(text: str) -> Factor:
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise UserError(f"--explain-product: {text!r} is not a number and what it is of, such as '2 sequence'")
    words = (match["words"] or match["named"]).strip().lower()
    value = _number(match["value"] or match["after"])
    for term in TERMS:
        if re.search(rf"(?<![\w/])(?:{term.words})(?![\w/])", words):
            return Factor(term=term, value=value)
    known = ", ".join(term.name for term in TERMS)
    raise UserError(f"--explain-product: {words!r} is nothing we know; there are: {known}")


def _number(text: str) -> float:
    over, _, under = text.replace(" ", "").partition("/")
    value = float(Fraction(over) / Fraction(under)) if under and float(under) else float(over)
    if value <= 0:
        raise UserError(f"--explain-product: {text!r} is not a number above 0")
    return value


# --------------------------------------------------------------------------- what can be said of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A claim taken apart."""

    claim: Claim
    refused: bool
    """Whether the product has no meaning."""
    why: str
    factors: tuple[str, ...]
    """One line a factor."""
    hardware_low: float | None
    """Least of what may be hardware; None where the claim has no rate."""
    hardware_high: float | None
    remarks: tuple[str, ...]


def explain(
    claim: Claim,
    *,
    bound: Bound | None = None,
    measured: Sequence[float] = (),
    arms: tuple[Sequence[RunFacts], Sequence[RunFacts]] = ((), ()),
) -> Explanation:
    """Takes a claim apart.

    `measured` are ratios of matched public pairs of the two GPUs, `arms` the runs that the claim is about.
    """
    given, rates = claim.of(Kind.given, Kind.capability), claim.of(Kind.speed)
    outcomes = claim.of(Kind.speed, Kind.convergence)
    low, high = _hardware(claim)
    return Explanation(
        claim=claim,
        refused=bool(given and outcomes) or len(rates) > 1,
        why=_why(given, outcomes, rates),
        factors=tuple(_line(factor) for factor in claim.factors),
        hardware_low=low,
        hardware_high=high,
        remarks=(
            *_arithmetic(claim),
            *_recorded(claim, *arms),
            *_hardware_remarks(claim, low, high),
            *_limits(bound, measured),
            "T_A/T_B = (N_B P_B MFU_B)/(N_A P_A MFU_A) x (F_A S_A)/(F_B S_B): N GPUs, P peak, F FLOPs a token, S "
            "tokens to the loss. Hardware is P and MFU alone; F belongs to model and sequence, S to optimizer, batch "
            "and precision.",
        ),
    )


def _why(given: Sequence[Factor], outcomes: Sequence[Factor], rates: Sequence[Factor]) -> str:
    if given and outcomes:
        return (
            f"multiplies what was given ({_names(given)}) with what came out ({_names(outcomes)}); "
            "an outcome already has in it what was given"
        )
    if len(rates) > 1:
        return f"multiplies outcomes of one cause ({_names(rates)}): the same speed is counted {len(rates)} times"
    if given:
        return f"names only what was given ({_names(given)}); nothing was measured"
    if len(outcomes) > 1:
        return "is a time to a loss, hardware and recipe together; it has to be measured as one, with several seeds"
    return "is one outcome, not a product"


def _names(factors: Sequence[Factor]) -> str:
    return ", ".join(factor.term.name for factor in factors)


def _line(factor: Factor) -> str:
    counted = "" if factor.counted == factor.value else f", counted as x{factor.counted:g}"
    return f"{factor.value:g} {factor.term.name}{counted}: {factor.term.kind.value}; {factor.term.objection}"


def _hardware(claim: Claim) -> tuple[float | None, float | None]:
    """A rate is of one GPU or of the whole job; in the latter case it is spread over fewer GPUs."""
    rates = [factor for factor in claim.of(Kind.speed) if factor.term.name in ("FLOP/s", "tokens/s")]
    if not rates:
        return None, None
    rate = rates[0].counted
    sizes = [factor.value for factor in claim.factors if factor.term.name in ("nodes", "GPUs")]
    whole = rate / sizes[0] if sizes else rate
    return min(rate, whole), max(rate, whole)


def _hardware_remarks(claim: Claim, low: float | None, high: float | None) -> list[str]:
    if low is None or high is None:
        return ["nothing in the claim is a measured rate, so nothing of it can be put down to hardware"]
    if low == high:
        return [f"at most {low:g}x can be put down to hardware, software and layout together: the rate"]
    size = next(factor.value for factor in claim.factors if factor.term.name in ("nodes", "GPUs"))
    rate = low if size < 1 else high
    return [
        f"at most the rate can be put down to hardware: {rate:g}x if it is per GPU (the number of GPUs is in it "
        f"already), {rate / size:g}x per GPU if it is of the whole job on {size:g} times the GPUs; which of the two, "
        "the claim doesn't say"
    ]


def _arithmetic(claim: Claim) -> list[str]:
    if claim.total is None or abs(claim.total / claim.product - 1) < 0.02:
        return []
    return [f"the factors make {claim.product:g}, not {claim.total:g}"]


def _limits(bound: Bound | None, measured: Sequence[float]) -> list[str]:
    found = []
    if bound:
        found.append(
            f"the data sheets allow about {bound.limit:.2f}x ({bound}; 1.15 x the larger of peak and bandwidth)"
        )
    if measured:
        found.append(
            f"matched public pairs of these GPUs (same model, size, batch, sequence, precision, software): "
            f"{min(measured):.2f}x to {max(measured):.2f}x in {len(measured)}"
        )
    return found


def _recorded(claim: Claim, a: Sequence[RunFacts], b: Sequence[RunFacts]) -> list[str]:
    """What the runs behind the claim recorded of its factors."""
    if not a or not b:
        return []
    found = []
    for factor in claim.factors:
        values = _values(factor.term.name, a[0], b[0])
        if values is None:
            found.append(f"{factor.term.name}: the runs didn't record it")
            continue
        ratio = values[1] / values[0]
        shown = f"{factor.term.name}: recorded {values[0]:,g} and {values[1]:,g}, a factor of {ratio:.3g}"
        agrees = any(abs(one / factor.value - 1) < 0.05 for one in (ratio, 1 / ratio))
        found.append(shown if agrees else f"{shown} (or {1 / ratio:.3g}), not the {factor.value:g} that is claimed")
    return found


_RECORDED: Mapping[str, Callable[[RunFacts], object]] = {
    "nodes": lambda run: run.factors.get("nodes"),
    "GPUs": lambda run: run.gpus,
    "sequence length": lambda run: run.factors.get("sequence_length"),
    "batch": lambda run: run.factors.get("global_batch"),
    "FLOP/s": lambda run: run.model_tflops_per_gpu,
    "tokens/s": lambda run: run.tokens_per_s_per_gpu,
    "convergence": lambda run: run.targets[0].steps if run.targets else run.factors.get("schedule"),
}
"""What a run recorded of a term."""


def _values(name: str, a: RunFacts, b: RunFacts) -> tuple[float, float] | None:
    if name not in _RECORDED:
        return None
    value_a, value_b = _RECORDED[name](a), _RECORDED[name](b)
    if isinstance(value_a, int | float) and isinstance(value_b, int | float) and value_a and value_b:
        return float(value_a), float(value_b)
    return None
