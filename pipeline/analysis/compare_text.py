"""A comparison in words and as plain data: what the command line, markdown and JSON show (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.analysis.answers import Answer, Comparability
from pipeline.analysis.comparison import Comparison
from pipeline.analysis.confounders import Confounder
from pipeline.analysis.facts import Origin, recipe_hash
from pipeline.analysis.product import Explanation
from pipeline.analysis.roles import BLOCKS, Estimand, Role, Severity

TITLES = {
    Estimand.throughput: "tokens/s/GPU",
    Estimand.flops: "model FLOP/s/GPU",
    Estimand.time_to_loss: "time to loss (hardware, equal recipe)",
    Estimand.recipe_time_to_loss: "time to loss (hardware and recipe together)",
    Estimand.cost: "cost a token",
    Estimand.energy: "energy a token",
    Estimand.feasibility: "what fits",
}


def verdict_line(found: Comparison) -> str:
    """The first line: what this is, and of what."""
    headline = found.headline
    what = f"of {found.treatment.title}" if found.treatment else "of nothing in particular"
    if headline.comparability is Comparability.not_comparable:
        hardware = found.treatment is None or found.treatment.key in ("gpu", "platform")
        kind = "NOT A HARDWARE COMPARISON" if hardware else f"NOT A COMPARISON {what}"
        named = "; ".join(str(one) for one in found.confounders if _is_named(one))
        weighty = named or "; ".join(headline.reasons)
        return f"{kind}: the arms differ in {weighty}" if named else f"{kind}: {weighty}"
    if found.treatment is None and not found.confounders:
        return f"{verdict_words(headline)}: nothing differs; the ratio is what repeats differ by"
    return f"{verdict_words(headline)}: a comparison {what}, {_values(found)}"


def _is_named(one: Confounder) -> bool:
    weighty = one.variable.role in (Role.block, Role.correctable) and not one.is_unknown
    return weighty or one.worst is not Severity.disclose


def _values(found: Comparison) -> str:
    if found.treatment is None:
        return "nothing weighty differs"
    values = (", ".join(dict.fromkeys(str(run.factors.get(found.treatment.key, "?")) for run in arm))
              for arm in (found.a, found.b))  # fmt: skip
    return " vs ".join(values)


def verdict_words(answer: Answer) -> str:
    """COMPARABLE and the like with its flags."""
    flags = sorted(flag.value for flag in answer.flags)
    return " ".join([answer.comparability.value, *(f"[{flag}]" for flag in flags)])


def ratio_text(answer: Answer) -> str:
    """2.12 [1.95, 2.30], or a range where there is but a bound; empty without a ratio."""
    if answer.ratio is None:
        return ""
    interval = f"[{answer.ratio.low:.3g}, {answer.ratio.high:.3g}]"
    if answer.comparability is Comparability.bounded:
        return f"in {interval}"
    return f"{answer.ratio.value:.3g} {interval}"


def what_can_be_said(found: Comparison) -> list[str]:
    """For arms that don't match: the plain measurements, and what each is confounded by."""
    if found.headline.comparability is not Comparability.not_comparable:
        return []
    rates = [_mean([run.tokens_per_s_per_gpu for run in arm]) for arm in (found.a, found.b)]
    lines = []
    if all(rates):
        by = "; ".join(f"{one.variable.title}: {one.effect}" for one in found.confounders if not _is_remark(one))
        lines.append(f"tokens/s/GPU {rates[0]:,.0f} vs {rates[1]:,.0f}, confounded by {by}")
    flops = found.answer(Estimand.flops)
    if flops.ratio is not None:
        lines.append(f"model FLOP/s/GPU {flops.a} vs {flops.b}: {ratio_text(flops)} {verdict_words(flops)}")
    timed = found.answer(Estimand.recipe_time_to_loss)
    if timed.ratio is not None:
        lines.append(f"{TITLES[timed.estimand]}: {ratio_text(timed)} {verdict_words(timed)}")
    elif timed.a or timed.b:
        lines.append(f"steps to the loss: {timed.a or 'unknown'} vs {timed.b or 'unknown'}; {timed.reasons[0]}")
    return lines


def shown_answers(found: Comparison) -> list[Answer]:
    """Answers worth a row: FLOP/s only where it says something else than tokens/s."""
    rate, flops = found.answer(Estimand.throughput), found.answer(Estimand.flops)
    same = flops.ratio is None or (rate.ratio is not None and abs(flops.ratio.value / rate.ratio.value - 1) < 1e-3)
    return [one for one in found.answers if one.estimand is not Estimand.flops or not same]


def notes(found: Comparison) -> list[str]:
    """What lies behind the answers, each thing once: where intervals come from, and why a question has no answer."""
    lines = []
    for one in shown_answers(found):
        if one.ratio is not None:
            lines += [f"interval from {one.ratio.basis}", *one.reasons]
        elif one.estimand is not Estimand.feasibility:
            rest = len(one.reasons) - 1
            more = f"; and {rest} more" if rest else ""
            lines.append(f"no {TITLES[one.estimand]}: {one.reasons[0]}{more}")
        else:
            lines += [f"{TITLES[one.estimand]}: {reason}" for reason in one.reasons]
    return list(dict.fromkeys(lines))


def closing_lines(found: Comparison) -> list[str]:
    """Remarks, runs that were left out by reason, and the bound by hardware."""
    out: dict[str, list[str]] = {}
    for one in found.left_out:
        out.setdefault(one.why, []).append(one.name)
    lines = [*found.remarks, *(f"left out ({why}): {', '.join(names)}" for why, names in out.items())]
    if found.matched_sets > 1:
        lines.append(
            f"{found.matched_sets} matched sets; I2 = {found.heterogeneity:.0%} of their spread is beyond intervals"
        )
    if found.bound:
        lines.append(f"hardware bound on a rate: {found.bound.limit:.2f}x ({found.bound})")
    return lines


def _is_remark(one: Confounder) -> bool:
    return one.worst is Severity.disclose and (one.is_unknown or one.variable.role is not Role.block)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def arm_lines(found: Comparison) -> Iterator[str]:
    """The two arms: how many runs, of what."""
    for name, arm in (("A", found.a), ("B", found.b)):
        hashes = ", ".join(dict.fromkeys(recipe_hash(run, BLOCKS) for run in arm))
        names = ", ".join(run.name for run in arm[:3]) + (f" and {len(arm) - 3} more" if len(arm) > 3 else "")
        count = f"{len(arm)} {'published ' * (arm[0].origin is Origin.published)}run{'s' * (len(arm) != 1)}"
        yield f"{name}: {count} on {arm[0].gpus} x {arm[0].factors.get('gpu')}, recipe {hashes}: {names}"


def as_json(found: Comparison) -> dict[str, object]:
    """Everything as plain data, enums by value."""
    return {
        "verdict": found.headline.comparability.value,
        "flags": sorted(flag.value for flag in found.headline.flags),
        "treatment": found.treatment.key if found.treatment else None,
        "a": [run.name for run in found.a],
        "b": [run.name for run in found.b],
        "matched_sets": found.matched_sets,
        "heterogeneity": found.heterogeneity,
        "answers": {one.estimand.value: answer_json(one) for one in found.answers},
        "confounders": [confounder_json(one) for one in found.confounders],
        "bound": None if found.bound is None else {"limit": found.bound.limit, "text": str(found.bound)},
        "left_out": {one.name: one.why for one in found.left_out},
        "remarks": list(found.remarks),
        "what_can_be_said": what_can_be_said(found),
    }


def answer_json(answer: Answer) -> dict[str, object]:
    """One answer as plain data."""
    ratio = answer.ratio
    return {
        "verdict": answer.comparability.value,
        "flags": sorted(flag.value for flag in answer.flags),
        "ratio": None if ratio is None or answer.comparability is Comparability.bounded else ratio.value,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "interval_from": ratio.basis if ratio else None,
        "a": answer.a,
        "b": answer.b,
        "reasons": list(answer.reasons),
    }


def confounder_json(one: Confounder) -> dict[str, object]:
    """One confounder as plain data."""
    return {
        "variable": one.variable.key,
        "role": one.variable.role.value,
        "class": one.worst.value,
        "class_for": {estimand.value: severity.value for estimand, severity in one.severity.items()},
        "a": one.a,
        "b": one.b,
        "effect": one.effect,
    }


def explanation_json(found: Explanation) -> dict[str, object]:
    """A claim taken apart as plain data."""
    return {
        "claim": found.claim.text,
        "refused": found.refused,
        "why": found.why,
        "factors": list(found.factors),
        "hardware_at_most": [found.hardware_low, found.hardware_high],
        "remarks": list(found.remarks),
    }


def explanation_lines(found: Explanation) -> Iterator[str]:
    """A claim taken apart, for people."""
    yield f'{"REFUSED PRODUCT" if found.refused else "CLAIM"}: "{found.claim.text}" {found.why}.'
    yield from (f"  {line}" for line in found.factors)
    yield from found.remarks
