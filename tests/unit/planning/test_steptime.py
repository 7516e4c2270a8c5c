"""Collectives, the parts of a step, and the limits they have to respect."""

from __future__ import annotations

import dataclasses

import pytest
from planning_jobs import job, shape

from pipeline.model_math import flops_per_token
from pipeline.planning.collectives import Group, LinkModel, Network, exchange_s, gather_s, network, send_s
from pipeline.planning.job import Job
from pipeline.planning.steptime import SpeedModel, rate_class, step_time
from pipeline.types import NodeSpec, Recompute, Sharding, StepTime

LINKS = LinkModel()
B200 = Network(nvlink_gb_per_s=900, adapter_gb_per_s=50, domain_gpus=8)
LLAMA70 = shape(
    "llama70",
    {
        "num_layers": 80,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "num_attention_heads": 64,
        "num_query_groups": 8,
        "vocab_size": 128256,
    },
)
QWEN = shape(
    "qwen",
    {
        "num_layers": 48,
        "hidden_size": 2048,
        "ffn_hidden_size": 6144,
        "num_attention_heads": 32,
        "num_query_groups": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "moe": {"num_experts": 128, "top_k": 8, "expert_ffn_hidden_size": 768},
    },
)


def seconds(one: Job) -> StepTime:
    return step_time(one, SpeedModel(), one.layout.ranks_per_node)


# (GPUs, stride, measured bus bandwidth in GB/s of a 16 GiB all-reduce on 8 x B200 nodes with 400 Gbit/s a GPU)
@pytest.mark.parametrize(("size", "measured", "tolerance"), [(8, 846, 0.30), (32, 382, 0.05)])
def test_all_reduce_of_16_gib_is_near_the_measured_one(size: int, measured: float, tolerance: float) -> None:
    payload = 16 * 2**30
    taken = 2 * gather_s(payload, Group(size, 1), B200, LINKS)  # reduce-scatter, then all-gather
    bus = payload * 2 * (size - 1) / size / taken / 1e9
    assert bus == pytest.approx(measured, rel=tolerance)  # one node reduces in the switch, which isn't modelled


def test_a_group_with_a_stride_has_fewer_members_in_a_domain() -> None:
    assert Group(8, 1).members_per_domain(8) == 8
    assert Group(8, 4).members_per_domain(8) == 2
    assert Group(2, 8).members_per_domain(8) == 1
    assert gather_s(1e9, Group(8, 8), B200, LINKS) > gather_s(1e9, Group(8, 4), B200, LINKS)


def test_alone_nothing_is_sent() -> None:
    assert gather_s(1e9, Group(1, 1), B200, LINKS) == exchange_s(1e9, Group(1, 1), B200, LINKS) == 0


def test_leaving_the_domain_is_slower() -> None:
    assert exchange_s(1e9, Group(16, 1), B200, LINKS) > exchange_s(1e9, Group(8, 1), B200, LINKS)
    assert send_s(1e9, 8, B200, LINKS) > send_s(1e9, 4, B200, LINKS)


def test_an_unknown_network_is_assumed_and_said() -> None:
    one = dataclasses.replace(job(LLAMA70), node=NodeSpec())
    assert network(one, 8).adapter_gb_per_s == 50
    assert "assumed" in network(one, 8).assumed[0]
    assert network(job(LLAMA70), 8).assumed == ()


@pytest.mark.parametrize(
    "words",
    [
        {"dp": 8, "batch": 64},
        {"tp": 8, "batch": 64},
        {"tp": 4, "pp": 4, "cp": 2, "dp": 2, "batch": 128},
        {"tp": 4, "pp": 8, "vp": 5, "dp": 2, "batch": 128},
        {"dp": 64, "batch": 256, "sharding": Sharding.optim_grads_params},
    ],
)
@pytest.mark.parametrize("low", [None, "fp8_current"])
def test_no_step_beats_the_peak(words: dict[str, object], low: str | None) -> None:
    one = job(LLAMA70, seq=8192, low=low, **words)
    rate = one.layout.global_batch * 8192 / seconds(one).total_s / one.layout.ranks
    assert rate * flops_per_token(LLAMA70, 8192) < one.gpu.peak_tflops[rate_class(one)] * 1e12


def test_the_pipeline_bubble_shrinks_with_chunks_and_micro_batches() -> None:
    few, many = (seconds(job(LLAMA70, pp=8, batch=batch)) for batch in (8, 64))
    chunked = seconds(job(LLAMA70, pp=8, vp=5, batch=8))
    assert few.pipeline_s / few.total_s > 0.4 > many.pipeline_s / many.total_s
    assert chunked.pipeline_s < few.pipeline_s / 2


def test_full_recompute_costs_a_forward_pass() -> None:
    none, full = seconds(job(LLAMA70, tp=8)), seconds(job(LLAMA70, tp=8, recompute=Recompute.full))
    assert 1.2 < full.total_s / none.total_s < 1.45
    assert full.linear_s == none.linear_s


def test_attention_grows_with_the_square_of_the_sequence() -> None:
    short, long = seconds(job(LLAMA70, tp=8, seq=8192)), seconds(job(LLAMA70, tp=8, seq=32768))
    assert long.attention_s == pytest.approx(16 * short.attention_s)
    assert long.linear_s == pytest.approx(4 * short.linear_s)


def test_context_parallelism_divides_attention() -> None:
    one, four = seconds(job(LLAMA70, seq=32768)), seconds(job(LLAMA70, seq=32768, cp=4))
    assert four.attention_s == pytest.approx(one.attention_s / 4)
    assert four.context_parallel_s > 0


def test_experts_over_nodes_cost_more_than_inside_one() -> None:
    inside, across = (seconds(job(QWEN, dp=32, ep=ep, batch=32)) for ep in (8, 32))
    assert across.expert_parallel_s > 2 * inside.expert_parallel_s
    assert across.linear_s == pytest.approx(inside.linear_s)


def test_more_gpus_make_a_step_shorter_but_not_cheaper() -> None:
    eight, sixteen = (seconds(job(LLAMA70, tp=8, dp=dp, batch=64)).total_s for dp in (1, 2))
    assert eight / 2 <= sixteen < eight
