"""What a recipe needs of the software and the profile can't give is refused, with the version that could."""

from __future__ import annotations

import pytest
from planning_jobs import job, shape

from pipeline.config import load
from pipeline.errors import PlanRefused
from pipeline.planning.plan import make_plan
from pipeline.planning.software import check_software
from pipeline.types import CrossEntropy

MODEL = shape(
    "m",
    {
        "num_layers": 2,
        "hidden_size": 1024,
        "ffn_hidden_size": 4096,
        "num_attention_heads": 8,
        "num_query_groups": 8,
        "vocab_size": 256,
    },
)
B200 = {"gpu_name": "b200_sxm_180gb"}


@pytest.mark.parametrize(
    ("words", "component", "offered", "part"),
    [
        (B200, "cuda", "<12.8", "12.8 or later (B200-SXM-180GB appeared with it)"),
        (B200, "driver", ">=535,<560", "offers >=535,<560"),
        (B200 | {"low": "nvfp4"}, "te", "<2.7", "2.7 or later (nvfp4"),
        ({"low": "fp8_blockwise"}, "te", "<2.2.1", "2.3 or later"),
        ({"param_remainders": True}, "te", "==2.0", "precision-aware"),
        ({"cross_entropy": CrossEntropy.te}, "megatron-core", ">=0.19.0", "before 0.19"),
    ],
)
def test_refused_with_both_versions(words: dict[str, object], component: str, offered: str, part: str) -> None:
    (problem,) = check_software(job(MODEL, **words), {component: offered})
    assert part in problem.message
    assert f"hardware.software.{component}" in problem.message


@pytest.mark.parametrize("offered", [{}, {"cuda": ">=12.8"}, {"cuda": ">=12.4, <13"}])
def test_what_could_be_there_passes(offered: dict[str, str]) -> None:
    assert check_software(job(MODEL, **B200), offered) == []


def test_the_plan_refuses_it() -> None:
    words = ["hardware=dgx_b200", "precision=bf16", "model=llama3_8b", "recipe.global_batch=64"]
    with pytest.raises(PlanRefused, match=r"software\.cuda: this job needs 12\.8 or later"):
        make_plan(load([*words, "hardware.software.cuda='<12.6'"]).experiment)


def test_an_unreadable_range_is_named() -> None:
    (problem,) = check_software(job(MODEL), {"nccl": "new"})
    assert "hardware.software.nccl: got 'new'; the form is" in problem.message
