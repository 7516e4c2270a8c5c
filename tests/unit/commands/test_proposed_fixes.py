"""What a refusal proposes can be submitted: it passes the same check as a request."""

from __future__ import annotations

import argparse
from itertools import product

import pytest

from pipeline.__main__ import parser
from pipeline.commands.request import build_request, load_experiment, trainable
from pipeline.errors import PlanRefused
from pipeline.planning.changes import cheapest_fixes
from pipeline.planning.estimates import job_of
from pipeline.planning.layout import derive_layout
from pipeline.planning.memory import estimate_memory
from pipeline.types import Fit

ASKED = [
    ["hardware=sakura_phy_h100", "model=llama3_8b", "layout.tp=1", f"recipe.micro_batch={micro}", f"nodes={nodes}"]
    for micro, nodes in product((2, 4, 8), (1, 2))
]
COMMON = ["precision=bf16", "recipe.sequence_length=8192", "recipe.global_batch=128"]


def arguments(words: list[str]) -> argparse.Namespace:
    return parser().parse_args(["plan", *COMMON, *words])


@pytest.mark.parametrize("words", ASKED, ids=lambda words: " ".join(words[-2:]))
def test_fixes_are_trainable(words: list[str]) -> None:
    experiment = load_experiment(arguments(words)).experiment
    job, accept = job_of(experiment, derive_layout(experiment)[0]), trainable(experiment)
    assert estimate_memory(job).fit is Fit.refused
    fixes = cheapest_fixes(job, accept)
    assert fixes
    assert all(accept(fix.job) for fix in fixes)


def test_a_proposal_typed_back_is_a_plan_that_can_be_submitted() -> None:
    with pytest.raises(PlanRefused) as refused:
        build_request(arguments(ASKED[-1]))
    words = str(refused.value).partition("least change that fits: ")[2].partition(" (")[0].split()
    typed = {word.partition("=")[0]: word for word in [*ASKED[-1], *words]}
    request = build_request(arguments(list(typed.values())))
    assert request.why_untrainable() is None


def test_a_request_that_can_only_be_planned_may_be_fixed_by_anything() -> None:
    experiment = load_experiment(arguments(ASKED[0])).experiment
    job = job_of(experiment, derive_layout(experiment)[0])
    assert cheapest_fixes(job, lambda _: False) == cheapest_fixes(job)


def test_nothing_is_proposed_that_only_plans_where_the_request_itself_trains() -> None:
    experiment = load_experiment(arguments(ASKED[0])).experiment
    job = job_of(experiment, derive_layout(experiment)[0])
    assert cheapest_fixes(job, lambda one: one == job) == ()
