"""Layouts are derived with reasons and checked against every rule."""

from __future__ import annotations

import pytest

from pipeline.config import load
from pipeline.errors import PlanRefused
from pipeline.planning.layout import check_request, derive_layout
from pipeline.planning.plan import make_plan


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["experiment=demo"], (1, 4, 2, 2)),
        (["experiment=demo", "cluster=dev"], (2, 2, 2, 2)),
        (["experiment=demo", "cluster=dev", "nodes=4", "ranks=null"], (4, 2, 2, 4)),
        (["experiment=demo", "ranks=2", "layout.tp=1"], (1, 2, 1, 2)),
        (["experiment=demo", "cluster=dev", "ranks=2"], (1, 2, 2, 1)),
        (["experiment=demo", "cluster=dev", "ranks=4", "nodes=4"], (4, 1, 2, 2)),
    ],
)
def test_sizes_are_derived(overrides: list[str], expected: tuple[int, int, int, int]) -> None:
    layout, _ = derive_layout(load(overrides).experiment)
    assert (layout.nodes, layout.ranks_per_node, layout.tp, layout.dp) == expected


def test_every_derived_value_has_a_reason() -> None:
    reasons = {reason.what: reason.why for reason in make_plan(load(["experiment=demo"]).experiment).reasons}
    assert reasons["tp"] == "layout.tp asks for it"
    assert "4 ranks" in reasons["dp"]


BROKEN = {
    "positive": ["recipe.micro_batch=0"],
    "ranks": ["ranks=5", "nodes=2"],
    "ranks_per_node": ["ranks=16", "nodes=2"],
    "world": ["layout.tp=3"],
    "global_batch": ["recipe.global_batch=20"],
    "num_attention_heads": ["model.num_attention_heads=5", "model.num_query_groups=5", "model.head_dim=16"],
    "num_query_groups": ["model.num_query_groups=1"],
    "ffn_hidden_size": ["model.ffn_hidden_size=255"],
    "groups_of_heads": ["model.num_attention_heads=6", "model.num_query_groups=4", "model.head_dim=16"],
    "head_dim": ["model.hidden_size=66"],
    "rope": ["model.head_dim=15"],
    "layers": ["layout.pp=2", "model.num_layers=3", "layout.tp=1"],
    "max_sequence_length": ["recipe.sequence_length=2048"],
    "cp": ["layout.cp=2", "recipe.sequence_length=66"],
    "sequence_parallel": ["layout.sequence_parallel=true", "layout.tp=1"],
    "sequence_parallel_split": ["layout.sequence_parallel=true", "recipe.sequence_length=63"],
    "warmup": ["optimizer.warmup_steps=60"],
    "lr": ["optimizer.min_lr=1"],
}


@pytest.mark.parametrize(("rule", "overrides"), BROKEN.items())
def test_each_rule_is_refused_by_name_on_one_line(rule: str, overrides: list[str]) -> None:
    experiment = load(["experiment=demo", *overrides]).experiment
    layout, _ = derive_layout(experiment)
    problems = {problem.rule: problem.message for problem in check_request(experiment, layout)}
    assert rule in problems
    assert all("\n" not in message for message in problems.values())
    with pytest.raises(PlanRefused):
        make_plan(experiment)


def test_all_broken_rules_are_named_at_once() -> None:
    with pytest.raises(PlanRefused, match=r"sequence_length.*warmup_steps"):
        make_plan(load(["experiment=demo", "recipe.sequence_length=4096", "optimizer.warmup_steps=99"]).experiment)
