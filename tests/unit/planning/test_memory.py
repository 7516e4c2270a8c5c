"""Memory against measured peaks, against arithmetic by hand, and the verdict."""

from __future__ import annotations

import dataclasses
from statistics import median

import pytest
from planning_jobs import job, measured_cases, shape

from pipeline.planning.job import GIB, Job
from pipeline.planning.memory import estimate_memory, stage_memories, static_bytes
from pipeline.planning.stages import chunk_sizes, chunks_in_flight, stages
from pipeline.types import DType, Fit, ModelSpec, Recompute, RecomputeMethod, Sharding

LLAMA8 = shape(
    "llama8",
    {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "vocab_size": 128256,
    },
)
CASES = measured_cases()


def allocated(case: Job, name: str) -> float:
    found = stage_memories(case)
    return found[-1].allocated_gib if "golden" in name else max(stage.allocated_gib for stage in found)


@pytest.mark.parametrize(("name", "case", "measured"), CASES, ids=[name for name, _, _ in CASES])
def test_allocation_is_within_four_percent_of_the_measured_peak(name: str, case: Job, measured: float) -> None:
    assert allocated(case, name) == pytest.approx(measured, rel=0.04)


def test_median_error_is_under_one_and_a_half_percent() -> None:
    assert median(abs(allocated(case, name) / measured - 1) for name, case, measured in CASES) < 0.015


@pytest.mark.parametrize(("name", "case", "measured"), CASES, ids=[name for name, _, _ in CASES])
def test_what_ran_is_not_refused(name: str, case: Job, measured: float) -> None:
    assert estimate_memory(case).fit is not Fit.refused, name
    assert max(stage.lower_gib for stage in stage_memories(case)) < measured + 3


def test_static_bytes_of_the_distributed_optimizer() -> None:
    one = job(LLAMA8, dp=8)
    weights, gradients, optimizer = static_bytes(one, stages(one)[0])
    held = 8_030_261_248
    assert (weights, gradients) == (2 * held, 4 * held)
    assert optimizer == pytest.approx(12 * held / 8)


@pytest.mark.parametrize(
    ("words", "bytes_of_optimizer"),
    [
        ({"moments": DType.bf16}, 8),
        ({"moments": DType.bf16, "param_remainders": True}, 6),
        ({"optimizer_offload": 0.5}, 6),
    ],
)
def test_optimizer_state_by_mode(words: dict[str, object], bytes_of_optimizer: int) -> None:
    one = job(LLAMA8, dp=1, **words)
    assert static_bytes(one, stages(one)[0])[2] == pytest.approx(bytes_of_optimizer * 8_030_261_248)


def test_fsdp_divides_gradients_and_then_weights() -> None:
    plain, grads, params = (
        stage_memories(job(LLAMA8, dp=8, sharding=kind))[0]
        for kind in (Sharding.none, Sharding.optim_grads, Sharding.optim_grads_params)
    )
    assert plain.weights_gib == grads.weights_gib > params.weights_gib
    assert plain.gradients_gib > grads.gradients_gib == pytest.approx(params.gradients_gib)


@pytest.mark.parametrize(
    ("stage", "pp", "vp", "micro_batches", "chunks"),
    [(0, 1, 1, 8, 1), (0, 4, 1, 8, 4), (3, 4, 1, 8, 1), (0, 4, 1, 2, 2), (3, 4, 8, 4, 29), (0, 4, 8, 100, 35)],
)
def test_chunks_in_flight(stage: int, pp: int, vp: int, micro_batches: int, chunks: int) -> None:
    assert chunks_in_flight(stage, pp, vp, micro_batches) == chunks


@pytest.mark.parametrize("layers", [32, 61, 94, 126])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8, 16, 32])
def test_every_layer_stands_in_one_chunk(layers: int, chunks: int) -> None:
    sizes = chunk_sizes(layers, chunks)
    assert sum(sizes) == layers
    assert len(sizes) == chunks


def test_ends_of_an_uneven_pipeline_have_one_layer_less() -> None:
    assert chunk_sizes(126, 64) == (1, *([2] * 62), 1)


def test_recompute_keeps_less() -> None:
    none, norms, mlp, full = (
        stage_memories(job(LLAMA8, seq=8192, **words))[0].activations_gib
        for words in (
            {},
            {"recompute": Recompute.selective, "recompute_modules": ["layernorm"]},
            {"recompute": Recompute.selective, "recompute_modules": ["mlp"]},
            {"recompute": Recompute.full},
        )
    )
    assert none > norms > mlp > full
    assert (none - norms) * GIB == 32 * 4 * 4096 * 8192
    assert (none - mlp) * GIB == 32 * 6 * 14336 * 8192


def test_block_recompute_lies_between_none_and_full() -> None:
    def kept(layers: int) -> float:
        block = {"recompute_method": RecomputeMethod.block, "recompute_num_layers": layers}
        return stage_memories(job(LLAMA8, recompute=Recompute.full, **block))[0].activations_gib

    none = stage_memories(job(LLAMA8))[0].activations_gib
    assert kept(0) == pytest.approx(none)
    assert none > kept(5) > kept(32)


def test_core_attention_recompute_saves_nothing() -> None:
    words = {"recompute": Recompute.selective, "recompute_modules": ["core_attn"]}
    assert stage_memories(job(LLAMA8, **words)) == stage_memories(job(LLAMA8))


@pytest.mark.parametrize("layers", [4, 16])
def test_context_and_sequence_parallelism_divide_activations(layers: int) -> None:
    model = dataclasses.replace(LLAMA8, num_layers=layers)
    one = stage_memories(job(model, seq=8192))[0].activations_gib
    assert stage_memories(job(model, seq=8192, cp=4))[0].activations_gib == pytest.approx(one / 4)
    assert stage_memories(job(model, seq=8192, tp=4))[0].activations_gib == pytest.approx(one / 4)


def refusals(model: ModelSpec, gpu_name: str) -> Fit:
    return estimate_memory(job(model, gpu_name=gpu_name, seq=8192, dp=8)).fit


def test_the_verdict_follows_the_bounds() -> None:
    assert refusals(LLAMA8, "a100_sxm4_80gb") is Fit.refused
    assert refusals(LLAMA8, "h200_sxm_141gb") is Fit.fits
    assert refusals(dataclasses.replace(LLAMA8, num_layers=800), "gb300") is Fit.refused
    between = estimate_memory(job(LLAMA8, gpu_name="h100_sxm5_80gb", seq=2048, dp=8))
    assert between.fit is Fit.at_risk
    assert between.worst.lower_gib < between.capacity_gib < between.worst.upper_gib


def test_bounds_enclose_the_expectation() -> None:
    for _, case, _ in CASES:
        for stage in stage_memories(case):
            assert stage.lower_gib < stage.point_gib < stage.upper_gib
