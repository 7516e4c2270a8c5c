"""What a worker refuses before it starts, whoever wrote its plan."""

from __future__ import annotations

import pytest
from training_workers import plan_for, tiny_experiment

from pipeline.errors import PlanRefused
from pipeline.training.support import refuse_broken_rules, refuse_missing_format, refuse_unsupported
from pipeline.types import Dispatcher, DType, LowPrecision, MoeSpec, Precision


@pytest.mark.parametrize(
    ("sequence_length", "hidden_size", "layout", "said"),
    [
        (34, 32, {"cp": 2}, "34 must be a multiple of 2 x cp 2"),
        (33, 32, {"tp": 2, "sequence_parallel": True}, "must be a multiple of tp 2"),
        (32, 30, {}, "30 is not a multiple of num_attention_heads 4"),
    ],
)
def test_what_megatron_would_get_wrong_without_a_word_is_refused(
    sequence_length: int, hidden_size: int, layout: dict[str, int], said: str
) -> None:
    experiment = tiny_experiment()
    experiment.recipe.sequence_length, experiment.model.hidden_size = sequence_length, hidden_size
    with pytest.raises(PlanRefused, match=said):
        refuse_broken_rules(experiment, plan_for(experiment, **layout).layout)


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"cp": 2}, {"dp": 4}])
def test_a_plan_within_the_rules_passes(layout: dict[str, int]) -> None:
    experiment = tiny_experiment()
    refuse_broken_rules(experiment, plan_for(experiment, **layout).layout)


@pytest.mark.parametrize(
    ("low", "least"),
    [
        (LowPrecision.fp8_delayed, (8, 9)),
        (LowPrecision.fp8_current, (8, 9)),
        (LowPrecision.fp8_blockwise, (9, 0)),
        (LowPrecision.mxfp8, (10, 0)),
        (LowPrecision.nvfp4, (10, 0)),
    ],
)
def test_a_format_is_refused_on_a_gpu_that_lacks_it(low: LowPrecision, least: tuple[int, int]) -> None:
    precision = Precision(name="low", dtype=DType.bf16, low_precision=low)
    refuse_missing_format(precision, least)
    with pytest.raises(PlanRefused, match=f"{low.value} needs compute capability"):
        refuse_missing_format(precision, (8, 0))


def test_any_gpu_has_bf16() -> None:
    refuse_missing_format(Precision(name="bf16", dtype=DType.bf16), (8, 0))


EXPERTS = MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32)


@pytest.mark.parametrize(
    ("moe", "layout", "dispatcher", "said"),
    [
        (EXPERTS, {"tp": 2, "etp": 2, "sequence_parallel": True}, Dispatcher.alltoall, "allowed: allgather"),
        (EXPERTS, {"dp": 2, "ep": 2}, Dispatcher.flex, "allowed: alltoall, allgather"),
        (
            MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32, expert_bias=True, router_bias=True),
            {},
            Dispatcher.alltoall,
            "needs layout.ep of 2 or more",
        ),
    ],
)
def test_what_gloo_or_megatrons_own_experts_cannot_do_is_refused(
    moe: MoeSpec, layout: dict[str, int], dispatcher: Dispatcher, said: str
) -> None:
    experiment = tiny_experiment()
    model = experiment.model
    model.moe, experiment.techniques.moe_dispatcher = moe, dispatcher
    if moe.expert_bias:
        model.qkv_bias = model.output_bias = True
    with pytest.raises(PlanRefused, match=said):
        refuse_unsupported(experiment, plan_for(experiment, **layout).layout)


@pytest.mark.parametrize(
    ("key", "moe"),
    [
        ("model.output_bias", MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32, expert_bias=True)),
        ("model.moe.router_bias", MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32, expert_bias=True)),
        (
            "model.moe.shared_ffn_hidden_size",
            MoeSpec(num_experts=4, top_k=2, expert_ffn_hidden_size=32, expert_bias=True, shared_ffn_hidden_size=16),
        ),
    ],
)
def test_biases_of_some_layers_alone_are_refused(key: str, moe: MoeSpec) -> None:
    experiment = tiny_experiment()
    experiment.model.moe = moe
    with pytest.raises(PlanRefused, match=key):
        refuse_unsupported(experiment, plan_for(experiment, dp=2, ep=2).layout)
