"""What a recipe needs of the software and the profile can't give is refused, with the version that could."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from planning_jobs import job, shape

from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.errors import PlanRefused
from pipeline.planning.plan import make_plan
from pipeline.planning.software import check_software, needs
from pipeline.types import CrossEntropy, Evidence, HardwareProfile, Recompute

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
SOME = Recompute.selective


@pytest.mark.parametrize(
    ("words", "component", "offered", "part"),
    [
        (B200, "cuda", "<12.8", "12.8 or later (B200-SXM-180GB appeared with it)"),
        (B200, "driver", ">=535,<560", "offers >=535,<560"),
        (B200 | {"low": "nvfp4"}, "te", "<2.7", "2.7 or later (nvfp4"),
        (B200, "te", "<2.0", "2.0 or later (B200-SXM-180GB"),
        ({"gpu_name": "b300_sxm_270gb"}, "cuda", ">=12.6,<12.9", "12.9 or later (B300-SXM-270GB appeared"),
        ({"gpu_name": "a100_sxm4_80gb"}, "driver", "<450", "450 or later"),
        ({"low": "fp8_blockwise"}, "te", "<2.2.1", "2.3 or later"),
        ({"low": "fp8_blockwise"}, "cuda", "==12.8", "12.9 or later (Transformer Engine multiplies"),
        ({"low": "mxfp8", **B200, "recompute": SOME, "recompute_modules": ["layernorm"]}, "te", "<2.6", "2.6 or later"),
        ({}, "megatron-core", "<0.16", "0.16 or later"),
        ({}, "megatron-core", ">=0.20", "before 0.20"),
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


@cache
def profile(name: str) -> HardwareProfile:
    return load([f"hardware={name}"]).experiment.hardware


GPU_PROFILES = [name for name in options("hardware") if name != "laptop"]


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_every_profile_says_what_its_system_offers_and_where_that_is_from(name: str) -> None:
    hardware = profile(name)
    assert {"driver", "cuda"} <= set(hardware.software)
    assert set(hardware.software) == set(hardware.software_sources)
    assert all(isinstance(one, Evidence) and one.source for one in hardware.software_sources.values())


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_no_system_offers_less_than_its_gpu_needs(name: str) -> None:
    hardware = profile(name)
    assert hardware.gpu_spec is not None
    one = replace(job(MODEL), gpu=hardware.gpu_spec)
    for need in needs(one):
        offered = hardware.software.get(need.component)
        if offered is not None and need.at_least is not None:
            assert version(offered) >= version(need.at_least)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.lstrip("<>= ").split(".")[:2])
