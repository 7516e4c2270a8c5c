"""The optimizer over a model's chunks, and the schedule of its learning rate."""

from __future__ import annotations

from typing import Annotated

import torch
from megatron.core.optimizer import (
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer.muon import get_megatron_muon_optimizer
from megatron.core.optimizer.optimizer_config import ParamKey
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler, ParamGroupOverride

from pipeline.errors import UserError
from pipeline.training.megatron.model import Model
from pipeline.training.megatron.options import Options
from pipeline.training.megatron.precision import TORCH_DTYPES, fp8_recipe
from pipeline.training.megatron.sharding import reuses_gradients_for_parameters
from pipeline.types import Decay, DType, Experiment, MuonSpec, OptimizerSpec, Techniques

_MUON_PACKAGE = "emerging_optimizers"


def build_optimizer(model: Model, experiment: Experiment) -> MegatronOptimizer:
    """The optimizer of the recipe; formats and sharding are those the model was built with.

    Raises UserError when Muon is asked for where its package is missing.
    """
    spec = experiment.optimizer
    config = OptimizerConfig(**optimizer_options(model, experiment))
    overrides = get_standard_config_overrides(config)
    if spec.no_decay:
        overrides[ParamKey(name=tuple(spec.no_decay))] = ParamGroupOverride(wd_mult=0.0)
    optimizer = (
        get_megatron_optimizer(config, model, config_overrides=overrides, use_gloo_process_groups=False)
        if spec.muon is None
        else _muon(config, model, overrides, sharded=spec.distributed)
    )
    model[0].config.grad_scale_func = optimizer.scale_loss
    return optimizer


def optimizer_options(model: Model, experiment: Experiment) -> Options:
    """What the optimizer is configured with."""
    spec, techniques = experiment.optimizer, experiment.techniques
    return {
        **_adam(spec),
        **_as_built(model, experiment),
        **(_precision_aware(techniques) if is_precision_aware(techniques) else {}),
        **(_offload(techniques) if techniques.optimizer_offload else {}),
        **({} if spec.muon is None else _muon_options(spec.muon)),
    }


def _adam(spec: OptimizerSpec) -> Annotated[Options, OptimizerConfig]:
    return dict(
        optimizer="adam",
        lr=spec.lr,
        min_lr=spec.min_lr,
        weight_decay=spec.weight_decay,
        adam_beta1=spec.beta1,
        adam_beta2=spec.beta2,
        adam_eps=spec.eps,
        clip_grad=spec.clip_grad,
    )


def _as_built(model: Model, experiment: Experiment) -> Annotated[Options, OptimizerConfig]:
    """Megatron-Core trains wrongly, without a word, where these differ from the model's."""
    config, ddp_config = model[0].config, model[0].ddp_config
    return dict(
        bf16=config.bf16,
        params_dtype=config.params_dtype,
        fp8_recipe=fp8_recipe(experiment.precision),
        use_distributed_optimizer=ddp_config.use_distributed_optimizer,
        overlap_param_gather=ddp_config.overlap_param_gather,
        reuse_grad_buf_for_mxfp8_param_ag=reuses_gradients_for_parameters(experiment),
    )


def is_precision_aware(techniques: Techniques) -> bool:
    """Whether the optimizer keeps track of its state's types itself: they aren't all fp32, or not all on the GPU.

    Offload takes the same way through Megatron-Core, which goes wrong without it and doesn't say so (Megatron-LM's
    arguments.py does).
    """
    return techniques.moments is not DType.fp32 or techniques.param_remainders or techniques.optimizer_offload > 0


def _precision_aware(techniques: Techniques) -> Annotated[Options, OptimizerConfig]:
    moments = TORCH_DTYPES[techniques.moments]
    return dict(
        use_precision_aware_optimizer=True,
        store_param_remainders=techniques.param_remainders,
        main_params_dtype=torch.float32,
        main_grads_dtype=TORCH_DTYPES[techniques.grads],
        exp_avg_dtype=moments,
        exp_avg_sq_dtype=moments,
    )


def _offload(techniques: Techniques) -> Annotated[Options, OptimizerConfig]:
    return dict(
        optimizer_cpu_offload=True,
        optimizer_offload_fraction=techniques.optimizer_offload,
        overlap_cpu_optimizer_d2h_h2d=True,
        decoupled_weight_decay=True,
    )


# --------------------------------------------------------------------------- Muon


def _muon_options(muon: MuonSpec) -> Annotated[Options, OptimizerConfig]:
    return dict(
        optimizer="muon",
        muon_momentum=muon.momentum,
        muon_num_ns_steps=muon.iterations,
        muon_scale_mode=muon.scale.value,
        muon_extra_scale_factor=muon.extra_scale,
        muon_split_qkv=muon.split_qkv,
        # Each rank's part of a matrix would otherwise be orthogonalized alone: another update for every tp.
        muon_tp_mode="duplicated",
    )


def _muon(
    config: OptimizerConfig, model: Model, overrides: dict[ParamKey, ParamGroupOverride], *, sharded: bool
) -> MegatronOptimizer:
    try:
        __import__(_MUON_PACKAGE)
    except ImportError as error:
        raise UserError(
            f"optimizer.muon: Megatron-Core takes Muon from the package {_MUON_PACKAGE}, which is not installed; "
            f"install emerging-optimizers, or leave optimizer.muon out"
        ) from error
    return get_megatron_muon_optimizer(
        config,
        model,
        config_overrides=overrides,
        use_gloo_process_groups=False,
        layer_wise_distributed_optimizer=sharded,
    )


# --------------------------------------------------------------------------- schedule

_STYLES = {Decay.constant: "constant", Decay.cosine: "cosine", Decay.linear: "linear", Decay.wsd: "WSD"}


def build_schedule(optimizer: MegatronOptimizer, spec: OptimizerSpec, steps: int) -> OptimizerParamScheduler:
    """The learning rate over `steps` optimizer steps: linear warm-up from 0, then the spec's decay to `min_lr`."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=spec.lr,
        min_lr=spec.min_lr,
        lr_warmup_steps=spec.warmup_steps,
        # A run shorter than its warm-up is all warm-up; Megatron wants a step of decay to exist.
        lr_decay_steps=max(steps, spec.warmup_steps + 1),
        lr_decay_style=_STYLES[spec.decay],
        wsd_decay_steps=decay_steps(spec, steps) if spec.decay is Decay.wsd else None,
        lr_wsd_decay_style=spec.decay_shape.value,
        start_wd=spec.weight_decay,
        end_wd=spec.weight_decay,
        wd_incr_steps=steps,
        wd_incr_style="constant",
    )


def decay_steps(spec: OptimizerSpec, steps: int) -> int:
    """Steps of the decay phase of a warm-up, stable, decay schedule."""
    return max(1, steps // 10) if spec.decay_steps is None else spec.decay_steps


def learning_rate(schedule: OptimizerParamScheduler) -> float:
    """The rate that the next optimizer step will use."""
    return float(schedule.get_lr({}))


def advance_schedule(schedule: OptimizerParamScheduler, *, steps: int = 1) -> None:
    """Moves on by some optimizer steps."""
    schedule.step(increment=steps)


def optimizer_step(optimizer: MegatronOptimizer) -> float:
    """Clips and applies the gradients; returns their global norm before clipping."""
    _, grad_norm, _ = optimizer.step()
    return float("nan") if grad_norm is None else float(grad_norm)
