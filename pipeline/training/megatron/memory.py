"""What is kept for the backward pass, computed again, or moved to the host; and how the loss is computed."""

from __future__ import annotations

from typing import Annotated

from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.training.megatron.options import Options
from pipeline.types import CrossEntropy, DType, Experiment, Recompute, Techniques


def memory_options(experiment: Experiment) -> Options:
    """Recompute and offload of activations."""
    techniques = experiment.techniques
    return {**_recompute(techniques), **_offload(techniques)}


def _recompute(techniques: Techniques) -> Annotated[Options, TransformerConfig]:
    match techniques.recompute:
        case Recompute.none:
            return {}
        case Recompute.selective:
            return dict(recompute_granularity="selective", recompute_modules=list(techniques.recompute_modules))
        case Recompute.full:
            return dict(
                recompute_granularity="full",
                recompute_method=techniques.recompute_method.value,
                recompute_num_layers=techniques.recompute_num_layers,
            )


def _offload(techniques: Techniques) -> Annotated[Options, TransformerConfig]:
    if techniques.activation_offload_layers:
        return dict(
            cpu_offloading=True,
            cpu_offloading_num_layers=techniques.activation_offload_layers,
            cpu_offloading_activations=True,
            cpu_offloading_weights=False,
        )
    if techniques.offload_modules:
        return dict(
            fine_grained_activation_offloading=True,
            offload_modules=list(techniques.offload_modules),
        )
    return {}


def loss_options(experiment: Experiment) -> Annotated[Options, TransformerConfig]:
    """Which of Megatron's own losses is used; ours (fused with the output layer, or with z-loss) stand beside it."""
    kind = experiment.techniques.cross_entropy
    # The fused loss rounds the logits' gradient to bf16 whatever the model's type: no fp32 run may have that.
    native = kind is CrossEntropy.native and experiment.precision.dtype is DType.bf16
    return dict(
        cross_entropy_loss_fusion=native or kind is CrossEntropy.te,
        cross_entropy_fusion_impl="te" if kind is CrossEntropy.te else "native",
    )
