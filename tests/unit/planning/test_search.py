"""Searching layouts, and the least change that makes a job fit."""

from __future__ import annotations

import time

import pytest
from planning_jobs import job, shape

from pipeline.planning.changes import cheapest_fixes
from pipeline.planning.job import Job
from pipeline.planning.memory import estimate_memory
from pipeline.planning.render_estimates import search_text
from pipeline.planning.rules import is_legal
from pipeline.planning.search import LIMIT, candidates, search
from pipeline.types import Fit, Recompute

LLAMA70 = shape(
    "llama3_70b",
    {
        "num_layers": 80,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "vocab_size": 128256,
    },
)
QWEN30 = shape(
    "qwen3_30b_a3b",
    {
        "num_layers": 48,
        "hidden_size": 2048,
        "ffn_hidden_size": 6144,
        "num_attention_heads": 32,
        "num_query_groups": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "qk_norm": True,
        "moe": {"num_experts": 128, "top_k": 8, "expert_ffn_hidden_size": 768},
    },
)


def sixty_four() -> Job:
    return job(LLAMA70, dp=64, batch=512, seq=8192)


def test_the_best_are_legal_fit_and_differ_in_kind() -> None:
    result = search(sixty_four())
    assert len(result.best) == 3
    assert len({one.kind for one in result.best}) == 3
    for one in result.best:
        assert is_legal(one.job)
        assert one.memory.fit is not Fit.refused
        assert one.job.layout.ranks == 64
        assert one.job.layout.global_batch == 512
        assert one.job.layout.num_microbatches * one.job.layout.micro_batch * one.job.layout.dp == 512
    assert result.tried > result.refused + result.illegal


def test_the_best_is_at_least_as_fast_as_a_published_recipe() -> None:
    recipe = job(LLAMA70, tp=4, pp=4, vp=5, cp=2, dp=2, batch=512, seq=8192)  # NVIDIA's for 64 H100
    from pipeline.planning.throughput import estimate_throughput

    assert search(sixty_four()).best[0].rate >= 0.99 * estimate_throughput(recipe).tokens_per_s.p50


def test_near_ties_are_not_decided() -> None:
    result = search(sixty_four())
    first, second = result.best[:2]
    assert result.too_close == (second.throughput.tokens_per_s.p90 >= first.rate)
    assert "run both for 30 steps" in search_text(sixty_four(), result)


def test_experts_are_spread() -> None:
    best = search(job(QWEN30, gpu_name="b200_sxm_180gb", dp=8, batch=512)).best
    assert best
    assert all(one.job.layout.tp == 1 for one in best[:1])


def test_only_the_layout_is_searched_where_asked() -> None:
    asked = job(LLAMA70, dp=64, batch=512, seq=8192, micro=2)
    for one in candidates(asked, only_layout=True):
        assert one.layout.micro_batch == 2
        assert one.techniques == asked.techniques


def test_nothing_fits_on_one_gpu() -> None:
    result = search(job(LLAMA70, seq=8192))
    assert result.best == ()
    assert "none fits" in search_text(job(LLAMA70, seq=8192), result)


def test_ten_thousand_layouts_take_less_than_ten_seconds() -> None:
    large = job(LLAMA70, dp=1024, batch=8192, seq=8192)
    started = time.process_time()
    result = search(large)
    assert time.process_time() - started < 10
    assert 4_000 < result.tried <= LIMIT


# --------------------------------------------------------------------------- fixes


@pytest.mark.parametrize("gpu_name", ["h100_sxm5_80gb", "h200_sxm_141gb", "b200_sxm_180gb"])
def test_a_fix_fits_and_is_legal(gpu_name: str) -> None:
    asked = job(LLAMA70, gpu_name=gpu_name, dp=64, batch=512, seq=8192)
    assert estimate_memory(asked).fit is Fit.refused
    fixes = cheapest_fixes(asked)
    assert fixes
    for fix in fixes:
        assert is_legal(fix.job)
        assert fix.memory.fit is not Fit.refused
        assert fix.changes


def test_the_cheapest_single_change_comes_first() -> None:
    """Full recompute would do as well, but a smaller micro-batch costs less."""
    asked = job(LLAMA70, gpu_name="h200_sxm_141gb", tp=8, dp=8, batch=512, seq=8192, micro=4)
    assert estimate_memory(asked).fit is Fit.refused
    assert cheapest_fixes(asked)[0].changes == ("recipe.micro_batch=2",)


def test_numerics_are_never_changed_silently() -> None:
    exact, *others = cheapest_fixes(sixty_four())
    assert not exact.numerics
    assert not {word.split("=")[0] for word in exact.changes} & {"techniques.grads", "techniques.moments"}
    assert all(fix.numerics for fix in others)


def test_steps_that_turn_out_unneeded_are_taken_back() -> None:
    for fix in cheapest_fixes(sixty_four()):
        assert "techniques.expandable_segments=true" not in fix.changes  # the allocator doesn't save 200 GiB


def test_no_fix_for_what_never_fits() -> None:
    huge = shape("huge", {**_huge(), "num_layers": 4000})
    assert cheapest_fixes(job(huge, seq=8192)) == ()


def test_recompute_that_is_asked_for_is_kept() -> None:
    asked = job(LLAMA70, dp=64, batch=512, seq=8192, recompute=Recompute.full)
    assert all(one.techniques.recompute is Recompute.full for one in candidates(asked))


def _huge() -> dict[str, int]:
    return {
        "hidden_size": 16384,
        "ffn_hidden_size": 65536,
        "num_attention_heads": 128,
        "num_query_groups": 8,
        "vocab_size": 128256,
    }
