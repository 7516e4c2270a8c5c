"""Mixture of experts: routing, balance, and how tokens reach their experts."""

from __future__ import annotations

from typing import Annotated

from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.training.backend import Backend
from pipeline.training.megatron.options import Options
from pipeline.types import Balance, Dispatcher, Experiment, ModelSpec, MoeSpec, RouterScore


def expert_options(experiment: Experiment, backend: Backend) -> Options:
    """Everything about experts; nothing for a dense model."""
    model = experiment.model
    if model.moe is None:
        return {}
    return {**_layers(model, model.moe), **_router(model.moe), **_exchange(experiment, backend)}


def _layers(model: ModelSpec, moe: MoeSpec) -> Annotated[Options, TransformerConfig]:
    return dict(
        num_moe_experts=moe.num_experts,
        moe_ffn_hidden_size=moe.expert_ffn_hidden_size,
        moe_shared_expert_intermediate_size=moe.shared_ffn_hidden_size or None,
        moe_layer_freq=[int(layer >= moe.dense_layers) for layer in range(model.num_layers)],
        moe_expert_capacity_factor=moe.capacity_factor,
    )


def _router(moe: MoeSpec) -> Annotated[Options, TransformerConfig]:
    return dict(
        moe_router_topk=moe.top_k,
        moe_router_score_function=moe.router_score.value,
        # With one expert a token, a softmax over the chosen ones would always be 1.
        moe_router_pre_softmax=moe.top_k == 1 and moe.router_score is RouterScore.softmax,
        moe_router_topk_scaling_factor=moe.router_scale,
        moe_router_num_groups=moe.router_groups,
        moe_router_group_topk=moe.router_groups_per_token,
        moe_router_enable_expert_bias=moe.router_bias and moe.router_score is RouterScore.sigmoid,
        moe_router_load_balancing_type=moe.balance.value,
        moe_aux_loss_coeff=0.0 if moe.balance is Balance.none else moe.balance_weight,
        moe_z_loss_coeff=moe.z_loss or None,
        # Scores of many experts are close to one another; bf16 would choose between them by rounding.
        moe_router_dtype="fp32",
    )


def _exchange(experiment: Experiment, backend: Backend) -> Annotated[Options, TransformerConfig]:
    techniques = experiment.techniques
    return dict(
        moe_token_dispatcher_type=techniques.moe_dispatcher.value,
        moe_grouped_gemm=uses_grouped_gemm(experiment, backend),
        moe_permute_fusion=not backend.is_cpu and techniques.moe_dispatcher is not Dispatcher.allgather,
    )


def uses_grouped_gemm(experiment: Experiment, backend: Backend) -> bool:
    """Whether the experts of a rank are one kernel: as asked, else on a GPU."""
    asked = experiment.techniques.grouped_gemm
    return not backend.is_cpu if asked is None else asked
