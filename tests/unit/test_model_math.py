"""Parameters and FLOPs against published figures and against counting by hand."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.model_math import (
    FlopConvention,
    active_parameters,
    flops_per_token,
    layer_weights,
    mean_context,
    padded_vocab_size,
    parameters,
    rank_parameters,
)
from pipeline.types import ModelSpec, MoeSpec

# Parameter totals as the model cards and checkpoints print them (safetensors index of each repository).
PUBLISHED = {
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400,
    "llama3_2_3b": 3_212_749_824,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_620_634_112,
    "deepseek_v3": 671_026_419_200,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
}
# (name, billions as printed, relative tolerance of the rounding)
ROUNDED = [
    ("gpt_125m", 0.125, 0.02),
    ("gpt_350m", 0.350, 0.02),
    ("gpt_760m", 0.760, 0.01),
    ("gpt_1_3b", 1.3, 0.02),
    ("nemotron4_15b", 15.6, 0.005),
    ("nemotron4_340b", 341, 0.005),
    ("guide_1b", 1, 0.25),
    ("guide_3b", 3, 0.08),
    ("guide_8b", 8, 0.01),
    ("guide_14b", 14, 0.05),
    ("guide_32b", 32, 0.02),
    ("guide_64b", 64, 0.01),
]
# Parameters one token meets, billions, as the model cards print them.
ACTIVE = [("mixtral_8x7b", 12.9), ("mixtral_8x22b", 39.1), ("qwen3_30b_a3b", 3.3), ("qwen3_235b_a22b", 22.2)]


def model(name: str) -> ModelSpec:
    return load([f"model={name}"]).experiment.model


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_parameters_are_the_published_ones(name: str, published: int) -> None:
    assert parameters(model(name)) == published


@pytest.mark.parametrize(("name", "billions", "tolerance"), ROUNDED)
def test_parameters_are_near_the_printed_size(name: str, billions: float, tolerance: float) -> None:
    assert parameters(model(name)) / 1e9 == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize(("name", "billions"), ACTIVE)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert active_parameters(model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_every_shipped_model_is_checked() -> None:
    assert set(options("model")) == set(PUBLISHED) | {name for name, _, _ in ROUNDED} | {"tiny"}


def test_flops_follow_the_canonical_formula() -> None:
    shape = model("llama3_8b")
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    by_hand = 6 * (32 * layer + 128256 * 4096) + 6 * 32 * 8192 * 4096
    assert flops_per_token(shape, 8192) == by_hand


def test_conventions_differ_in_what_they_count() -> None:
    shape = model("llama3_70b")
    rates = {kind: flops_per_token(shape, 8192, convention=kind) for kind in FlopConvention}
    attention = 6 * 80 * 8192 * 8192
    assert rates[FlopConvention.full_attention] - rates[FlopConvention.canonical] == attention
    assert rates[FlopConvention.palm] == 6.0 * parameters(shape) + 2 * attention
    assert rates[FlopConvention.hardware] / rates[FlopConvention.full_attention] == pytest.approx(4 / 3, rel=0.01)


def test_a_window_shortens_the_context() -> None:
    shape = model("gpt_oss_20b")
    assert mean_context(shape, 4096, layer=1) == 2048
    assert mean_context(shape, 4096, layer=0) == 128 - 128**2 / (2 * 4096)
    assert mean_context(shape, 64, layer=0) == 32


def test_experts_are_split_over_ep_and_etp_and_the_rest_over_tp() -> None:
    weights = layer_weights(model("qwen3_30b_a3b"), 0)
    dense, experts = rank_parameters(weights, tp=2, ep=8, etp=2)
    assert experts == 128 * 3 * 2048 * 768 / 16
    assert dense == weights.split / 2 + 2048 * 128 + 2 * 128 + 2 * 2048


def test_first_layers_of_a_mixture_may_be_dense() -> None:
    shape = model("deepseek_v3")
    assert layer_weights(shape, 2).experts == 0
    assert layer_weights(shape, 3).experts == 256 * 3 * 7168 * 2048


def test_a_dense_model_with_one_expert_has_the_same_weights_and_a_router() -> None:
    dense = model("llama3_8b")
    one = MoeSpec(num_experts=1, top_k=1, expert_ffn_hidden_size=dense.ffn_hidden_size)
    assert parameters(dataclasses.replace(dense, moe=one)) == parameters(dense) + 32 * 4096


@pytest.mark.parametrize(("vocab", "tp", "padded"), [(50257, 1, 50304), (128256, 8, 129024), (256, 2, 256)])
def test_vocabulary_is_padded_for_tp(vocab: int, tp: int, padded: int) -> None:
    assert padded_vocab_size(vocab, tp) == padded
