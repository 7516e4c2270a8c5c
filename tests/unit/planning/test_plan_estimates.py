"""The plan of a whole request: a layout where none was asked for, estimates, refusals, and the text."""

from __future__ import annotations

import json

import pytest

from pipeline.calibration_files import shipped_calibration
from pipeline.config import load
from pipeline.errors import PlanRefused
from pipeline.planning.estimates import search_layouts
from pipeline.planning.plan import make_plan
from pipeline.planning.render_estimates import cost_rows, headline, memory_rows, search_text, speed_rows
from pipeline.rundir import from_jsonable, to_jsonable
from pipeline.types import Experiment, Fit, Plan

LLAMA70 = (
    "model=llama3_70b",
    "precision=bf16",
    "recipe.global_batch=512",
    "recipe.sequence_length=8192",
    "recipe.micro_batch=1",
)


def request(*overrides: str) -> Experiment:
    return load(list(overrides)).experiment


def planned(*overrides: str) -> Plan:
    return make_plan(request(*overrides), shipped_calibration())


def test_a_cpu_plan_says_nothing_about_memory_and_speed() -> None:
    plan = planned("experiment=demo")
    assert (plan.memory, plan.throughput, plan.cost, plan.warnings) == (None, None, None, ())
    assert headline(plan).startswith("not estimated yet")


def test_a_layout_that_fits_is_found_where_none_was_asked_for() -> None:
    plan = planned("hardware=dgx_h100", "nodes=8", *LLAMA70)
    assert plan.layout.tp * plan.layout.pp * plan.layout.cp > 1
    assert plan.memory is not None
    assert plan.memory.fit is not Fit.refused
    assert any(reason.what == "layout" and "dp 64 alone isn't expected to fit" in reason.why for reason in plan.reasons)


def test_the_calibrated_rate_is_near_the_published_one() -> None:
    plan = planned("hardware=dgx_h100", "nodes=8", *LLAMA70, "layout.tp=4", "layout.pp=4", "layout.cp=2", "layout.vp=5",
                   "layout.sequence_parallel=true")  # fmt: skip
    assert plan.throughput is not None
    assert plan.throughput.tokens_per_s_per_gpu.p50 == pytest.approx(1121, rel=0.05)  # NVIDIA/dgxc-benchmarking
    assert "llama3_70b" in plan.throughput.level


def test_plain_data_parallelism_stays_where_it_fits() -> None:
    plan = planned("hardware=dgx_h200", "model=llama3_8b", "precision=bf16", "recipe.global_batch=64")
    assert (plan.layout.tp, plan.layout.pp, plan.layout.dp) == (1, 1, 8)


def test_asked_sizes_are_honoured_or_refused_with_a_way_out() -> None:
    with pytest.raises(PlanRefused) as refusal:
        planned("hardware=dgx_h100", *LLAMA70, "layout.tp=8", "layout.sequence_parallel=true")
    text = str(refusal.value)
    assert "a rank needs at least" in text
    assert "H100-SXM5-80GB gives 79" in text
    assert "least change that fits" in text
    assert "\n" not in text
    assert refusal.value.exit_code == 7


def test_rules_of_the_hardware_reach_the_plan() -> None:
    with pytest.raises(PlanRefused, match="mxfp8 needs compute capability 10"):
        planned("hardware=dgx_h100", "precision=bf16", "precision.low_precision=mxfp8", "recipe.global_batch=64")


def test_fp32_speed_is_not_estimated() -> None:
    plan = planned("hardware=dgx_h100", "model=gpt_125m", "recipe.global_batch=64", "recipe.sequence_length=1024")
    assert plan.memory is not None
    assert plan.throughput is None
    assert "speed not estimated" in headline(plan)


@pytest.mark.parametrize(
    ("overrides", "money", "currency"),
    [
        (("hardware=aws_p6_b200",), 14.24, "USD"),
        (("hardware=sakura_phy_h100", "cluster.price_per_gpu_hour=300", "cluster.price_currency=JPY"), 300, "JPY"),
        (("hardware=sakura_phy_h100",), 417, "JPY"),
    ],
)
def test_money_names_its_basis(overrides: tuple[str, ...], money: float, currency: str) -> None:
    plan = planned(*overrides, "model=llama3_8b", "precision=bf16", "recipe.global_batch=64", "recipe.micro_batch=1")
    assert plan.cost is not None
    assert plan.cost.money == pytest.approx(money * plan.cost.gpu_hours)
    assert plan.cost.currency == currency
    assert plan.cost.money_basis


def test_unknown_price_and_power_stay_unknown() -> None:
    plan = planned("hardware=sakura_phy_b200", "model=llama3_8b", "precision=bf16", "recipe.global_batch=64")
    assert plan.cost is not None
    assert plan.cost.money is None
    assert "node overhead unknown" in plan.cost.energy_basis


def test_an_assumed_network_is_a_warning_and_widens_the_interval() -> None:
    words = ("model=llama3_8b", "precision=bf16", "recipe.global_batch=64", "nodes=2", "recipe.micro_batch=1")
    known, unknown = planned("hardware=dgx_b200", *words), planned("hardware=sakura_phy_b200", *words)
    assert any("nic_gbit_per_s is unknown" in warning for warning in unknown.warnings)
    assert known.throughput is not None
    assert unknown.throughput is not None
    assert unknown.throughput.step_s.p90 > known.throughput.step_s.p90


def test_the_rows_for_people_hold_the_numbers() -> None:
    plan = planned("hardware=dgx_b200", "nodes=2", *LLAMA70)
    assert plan.memory is not None
    assert plan.throughput is not None
    assert plan.cost is not None
    memory = memory_rows(plan.memory)
    assert memory[-1][1].startswith(plan.memory.fit.value)
    assert "of 178 GiB" in memory[0][1]
    assert "|" in memory[0][1]
    assert dict(speed_rows(plan.throughput))["calibration"].startswith("public-2026-11")
    assert "unknown" in dict(cost_rows(plan.cost))["money"]


def test_a_plan_survives_its_file() -> None:
    plan = planned("hardware=dgx_b200", "nodes=2", *LLAMA70)
    assert from_jsonable(json.loads(json.dumps(to_jsonable(plan))), Plan) == plan


def test_search_prints_overrides_that_plan_accepts() -> None:
    asked = request("hardware=dgx_b200", "nodes=2", *LLAMA70)
    job, result = search_layouts(asked, shipped_calibration())
    text = search_text(job, result)
    words = next(line for line in text.splitlines() if line.strip().startswith("layout.tp=")).split()
    plan = planned("hardware=dgx_b200", "nodes=2", *LLAMA70, *words)
    assert plan.throughput is not None
    assert plan.throughput.tokens_per_s.p50 == pytest.approx(result.best[0].rate)


def test_search_needs_numbers() -> None:
    with pytest.raises(PlanRefused, match="give hardware=NAME of a GPU profile"):
        search_layouts(request("experiment=demo"))
