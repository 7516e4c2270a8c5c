"""Arms that match, arms that don't, and what may be said of each."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import B200, H100, made, repeats, row, spread

from pipeline.analysis.answers import Comparability, Flag
from pipeline.analysis.compare_text import as_json, verdict_line, what_can_be_said
from pipeline.analysis.comparison import Comparison, compare
from pipeline.analysis.estimate import FEWEST_RUNS, pool, ratio_of
from pipeline.analysis.facts import Price, RunFacts, Target
from pipeline.analysis.public_pairs import matched_ratios
from pipeline.analysis.roles import Estimand, Severity
from pipeline.analysis.selection import shipped_rows
from pipeline.errors import UserError
from pipeline.types import RunState

B = {"gpu": "B200-SXM-180GB"}


def seminar() -> Comparison:
    """Half the nodes, twice the sequence, 28,000 against 18,000 iterations, another optimizer."""
    a = row("h100", gpus=16, rate=850.0, model="llama3_70b", sequence_length=4096, optimizer="adamw", nodes=2)
    b = row("b200", **B, gpus=8, rate=2000.0, model="llama3_70b", sequence_length=8192, optimizer="muon", nodes=1)
    a = dataclasses.replace(a, targets=(Target(loss=2.0, steps=28_000),), seed=1)
    b = dataclasses.replace(b, targets=(Target(loss=2.0, steps=18_000),), seed=1)
    return compare([a], [b])


def test_the_seminars_claim_is_no_hardware_comparison() -> None:
    """It is refused with the right reasons, and the part that can be said is said."""
    found = seminar()
    line = verdict_line(found)
    assert line.startswith("NOT A HARDWARE COMPARISON")
    assert all(
        words in line for words in ("sequence length: 4096 vs 8192", "GPUs: 16 vs 8", "optimizer: adamw vs muon")
    )
    assert found.headline.comparability is Comparability.not_comparable
    assert found.answer(Estimand.throughput).ratio is None
    for estimand in (Estimand.time_to_loss, Estimand.recipe_time_to_loss):
        assert "CONVERGENCE NOT MEASURED" in found.answer(estimand).reasons[0]
    flops = found.answer(Estimand.flops)
    assert flops.comparability is Comparability.bounded
    assert {Flag.indicative, Flag.model_adjusted} <= flops.flags
    said = " ".join(what_can_be_said(found))
    assert "850 vs 2,000" in said
    assert "28,000 steps vs 18,000 steps" in said
    assert "FLOPs a token" in said
    assert any("one arm stays inside a node" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("release", "model", "published"),
    [("25.11", "llama3-8b-fp8", 2.119), ("25.09", "llama3-8b-fp8", 2.130), ("26.02", "gpt-oss-120b-bf16", 1.343),
     ("26.04.01", "gpt-oss-120b-bf16", 2.330)],
)  # fmt: skip
def test_matched_public_pairs_have_their_published_ratio(release: str, model: str, published: float) -> None:
    """NVIDIA's own tables, B200 over H100, one release at a time."""
    rows = {one.name: one for one in shipped_rows()}
    found = compare([rows[f"{model}-h100-{release}"]], [rows[f"{model}-b200-{release}"]])
    answer = found.answer(Estimand.throughput)
    assert answer.comparability is Comparability.comparable
    assert answer.flags == {Flag.indicative}
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(published, abs=0.001)
    assert answer.ratio.low < published < answer.ratio.high
    assert found.treatment is not None
    assert found.treatment.key == "gpu"


def test_matched_sets_are_pooled_as_a_geometric_mean() -> None:
    """Four pairs make one ratio, with what they differ by beyond their intervals."""
    rows = shipped_rows()
    arms = [
        [one for one in rows if f"-{gpu}-" in one.name and "x" not in one.name.split("-")[-2]]
        for gpu in ("h100", "b200")
    ]
    found = compare(*arms)
    ratios = matched_ratios(rows, "H100-SXM5-80GB", "B200-SXM-180GB")
    answer = found.answer(Estimand.throughput)
    assert found.matched_sets == len(ratios) == 4
    assert answer.ratio is not None
    assert min(ratios) < answer.ratio.value < max(ratios)
    assert answer.ratio.value == pytest.approx(math.exp(np.mean(np.log(ratios))), rel=0.02)
    assert found.heterogeneity > 0.8


NOT = Comparability.not_comparable
FINE = Comparability.comparable


@pytest.mark.parametrize(
    ("key", "value", "throughput", "time_to_loss"),
    [
        ("model", "llama3_70b", NOT, NOT),
        ("task", "lora", NOT, NOT),
        ("sequence_length", 8192, NOT, NOT),
        ("precision", "fp8", NOT, NOT),
        ("global_batch", 128, NOT, NOT),
        ("optimizer", "muon", FINE, NOT),
        ("schedule", 500, FINE, NOT),
        ("data", "code", FINE, NOT),
        ("layout", "tp8", FINE, FINE),
        ("micro_batch", 2, FINE, FINE),
        ("techniques", "recompute=full", FINE, FINE),
        ("software", "release 2", FINE, FINE),
        ("driver", "590", FINE, FINE),
        ("model", None, NOT, NOT),
        ("precision", None, NOT, NOT),
        ("optimizer", None, FINE, NOT),
        ("driver", None, FINE, FINE),
    ],
)
def test_each_variable_does_what_its_role_says(
    key: str, value: object, throughput: Comparability, time_to_loss: Comparability
) -> None:
    """One variable besides the GPU differs, or was not recorded."""
    a = [_timed(one, 100.0) for one in repeats("a", spread(1000, 0.01))]
    b = [_timed(one, 50.0) for one in repeats("b", spread(2000, 0.01), **B, **{key: value})]
    found = compare(a, b)
    assert found.treatment is not None
    assert found.treatment.key == "gpu"
    assert found.answer(Estimand.throughput).comparability is throughput
    assert found.answer(Estimand.time_to_loss).comparability is time_to_loss
    assert key in {one.variable.key for one in found.confounders}
    blurred = key in ("software", "driver")
    if throughput is FINE:
        assert (Flag.indicative in found.answer(Estimand.throughput).flags) == blurred


def _timed(run: RunFacts, seconds: float) -> RunFacts:
    return dataclasses.replace(run, targets=(Target(loss=2.0, steps=1000, seconds=seconds),))


def test_three_seeds_an_arm_make_a_time_to_loss() -> None:
    """The ratio is A's GPU-seconds over B's; with two seeds there is none."""
    a = [_timed(one, 100.0 + index) for index, one in enumerate(repeats("a", spread(1000, 0.01)))]
    b = [_timed(one, 50.0 + index / 2) for index, one in enumerate(repeats("b", spread(2000, 0.01), **B))]
    answer = compare(a, b).answer(Estimand.time_to_loss)
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(2.0)
    assert compare(a, b).headline is not None
    assert compare(a, b).headline.estimand is Estimand.time_to_loss
    few = compare(a[:2], b).answer(Estimand.time_to_loss)
    assert few.ratio is None
    assert "CONVERGENCE NOT MEASURED" in few.reasons[0]


def test_other_recipes_have_a_time_to_loss_of_hardware_and_recipe_together() -> None:
    """It says nothing of the hardware alone, but it is measured."""
    a = [_timed(one, 100.0) for one in repeats("a", spread(1000, 0.01))]
    b = [_timed(one, 40.0) for one in repeats("b", spread(2000, 0.01), **B, optimizer="muon")]
    found = compare(a, b)
    assert found.answer(Estimand.time_to_loss).ratio is None
    together = found.answer(Estimand.recipe_time_to_loss)
    assert together.ratio is not None
    assert together.ratio.value == pytest.approx(2.5)


def test_other_sizes_are_corrected_by_a_measured_curve_and_else_bounded() -> None:
    """A on 16 GPUs at 90 % of its rate on 8: the curve gives the 10 % back, without it there is a range."""
    a = repeats("a", [900.0] * 3, gpus=16, global_batch=128)
    b = repeats("b", [2000.0] * 3, **B)
    bounded = compare(a, b).answer(Estimand.throughput)
    assert bounded.comparability is Comparability.bounded
    assert bounded.ratio is not None
    assert bounded.ratio.low == pytest.approx(2000 / 900 * 0.9)
    assert bounded.ratio.high == pytest.approx(2000 / 900)
    curve = [*repeats("c", [1000.0] * 3), *repeats("d", [900.0] * 3, gpus=16, global_batch=128)]
    corrected = compare(a, b, scaling=curve).answer(Estimand.throughput)
    assert corrected.comparability is Comparability.corrected
    assert corrected.ratio is not None
    assert corrected.ratio.value == pytest.approx(2.0, rel=1e-6)


def test_equal_sizes_are_preferred_to_a_correction() -> None:
    """An arm that was also run at the other's size is compared there."""
    a = [*repeats("a", [900.0] * 3, gpus=16, global_batch=128), *repeats("c", [1000.0] * 3)]
    found = compare(a, repeats("b", [2000.0] * 3, **B))
    answer = found.answer(Estimand.throughput)
    assert answer.comparability is Comparability.comparable
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(2.0)
    assert {one.name for one in found.left_out} == {"a0", "a1", "a2"}


def test_a_batch_is_corrected_by_the_model_where_there_is_one(tmp_path: Path) -> None:
    """Our own runs on a GPU the step-time model knows: corrected, and it says that a model did it."""
    a = [made(tmp_path, [*H100, "recipe.global_batch=128"], seed=seed, step_s=2.0) for seed in (1, 2, 3)]
    b = [made(tmp_path, B200, seed=seed, step_s=0.5) for seed in (1, 2, 3)]
    answer = compare(a, b).answer(Estimand.throughput)
    assert answer.comparability is Comparability.corrected
    assert Flag.model_adjusted in answer.flags


def test_runs_of_ours_with_three_repeats_are_comparable_without_flags(tmp_path: Path) -> None:
    """Medians of steady steps, warm-up left out; one that is not over is left out and said."""
    a = [made(tmp_path, H100, seed=seed, step_s=1.0) for seed in (1, 2, 3)]
    b = [made(tmp_path, B200, seed=seed, step_s=0.5) for seed in (1, 2, 3)]
    going = made(tmp_path, B200, state=None)
    failed = made(tmp_path, B200, state=RunState.failed)
    found = compare(a, [*b, going, failed])
    answer = found.answer(Estimand.throughput)
    assert answer.comparability is Comparability.comparable
    assert not answer.flags
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(2.0)
    assert {one.name for one in found.left_out} == {going.name, failed.name}
    timed = found.answer(Estimand.time_to_loss)
    assert timed.ratio is not None
    assert timed.ratio.value == pytest.approx(2.0)


def test_throttled_runs_and_mixed_arms_are_refused() -> None:
    """A run that was held back is left out; an arm of two GPUs is no arm."""
    held = dataclasses.replace(row("a"), throttled="power cap")
    with pytest.raises(UserError, match="throttled: power cap"):
        compare([held], [row("b", **B)])
    with pytest.raises(UserError, match="arm B mixes GPUs"):
        compare([row("a")], [row("b", **B), row("c", gpu="GB200")])
    with pytest.raises(UserError, match="no variable"):
        compare([row("a")], [row("b", **B)], treatment="colour")


def test_prices_compare_on_one_basis_only() -> None:
    """The ratio of costs is that of prices over rates."""
    demand = Price(per_gpu_hour=3.0, currency="USD", basis="on demand 2026-04")
    a = [dataclasses.replace(one, price=demand) for one in repeats("a", [1000.0] * 3)]
    b = repeats("b", [2000.0] * 3, **B)
    double = [dataclasses.replace(one, price=dataclasses.replace(demand, per_gpu_hour=6.0)) for one in b]
    spot = [dataclasses.replace(one, price=Price(per_gpu_hour=6.0, currency="USD", basis="spot")) for one in b]
    answer = compare(a, double).answer(Estimand.cost)
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(1.0)
    assert "price basis" in compare(a, spot).answer(Estimand.cost).reasons[0]
    assert "no price" in compare(a, b).answer(Estimand.cost).reasons[0]


def test_a_ratio_beyond_the_hardware_has_to_be_explained() -> None:
    """It is flagged with what else differs, not refused."""
    found = compare(repeats("a", [1000.0] * 3), repeats("b", [3400.0] * 3, **B, techniques="recompute=none"))
    assert found.answer(Estimand.throughput).comparability is Comparability.comparable
    assert any(remark.startswith("EXCEEDS BOUND") and "techniques" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("differs", "treatment"),
    [({}, None), ({"optimizer": "muon"}, "optimizer"), ({"layout": "tp2"}, "layout"), ({"software": "2"}, "software"),
     ({"sequence_length": 8192}, "sequence_length"), ({"optimizer": "muon", "data": "code"}, None)],
)  # fmt: skip
def test_the_only_thing_that_differs_is_what_is_compared(differs: dict[str, object], treatment: str | None) -> None:
    """On one GPU type: a single difference is an experiment, two are a muddle."""
    found = compare(repeats("a", spread(1000, 0.01)), repeats("b", spread(1100, 0.01), **differs))
    assert (found.treatment.key if found.treatment else None) == treatment
    assert treatment is None or found.answer(Estimand.throughput).comparability is Comparability.comparable


def test_intervals_hold_what_they_promise() -> None:
    """Of many pairs of arms with three runs each, 95 % of intervals hold the true ratio."""
    generator = np.random.default_rng(7)
    inside = 0
    for _ in range(1500):
        a, b = (np.exp(generator.normal(math.log(center), 0.02, FEWEST_RUNS)) for center in (1000.0, 2000.0))
        found = ratio_of(list(a), list(b))
        inside += found.low <= 2.0 <= found.high
    assert 0.93 < inside / 1500 < 0.98


def test_a_pool_of_like_sets_is_tighter_and_one_of_unlike_sets_is_not() -> None:
    """Random effects: what the sets disagree by widens the interval."""
    like = pool([ratio_of([1000.0] * 2, [2000.0 * factor] * 2) for factor in (0.99, 1.0, 1.01)])
    unlike = pool([ratio_of([1000.0] * 2, [2000.0 * factor] * 2) for factor in (0.6, 1.0, 1.6)])
    assert like.heterogeneity == 0.0
    assert unlike.heterogeneity > 0.8
    assert math.log(unlike.ratio.high / unlike.ratio.low) > 3 * math.log(like.ratio.high / like.ratio.low)


def test_json_says_the_same_for_machines() -> None:
    """Enums by value, a ratio only where there is one."""
    document = as_json(seminar())
    assert document["verdict"] == "NOT_COMPARABLE"
    assert document["answers"]["throughput"]["ratio"] is None  # type: ignore[index]
    classes = {one["variable"]: one["class"] for one in document["confounders"]}  # type: ignore[attr-defined]
    assert classes["sequence_length"] == Severity.fatal.value
    assert classes["gpus"] == Severity.correctable.value
    assert classes["optimizer"] == Severity.disclose.value
