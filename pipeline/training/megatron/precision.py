"""Number formats: what weights, activations and linear layers compute in."""

from __future__ import annotations

from typing import Annotated

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from pipeline.training.megatron.options import Options
from pipeline.types import DType, LowPrecision, Precision

TORCH_DTYPES = {DType.fp32: torch.float32, DType.bf16: torch.bfloat16, DType.fp16: torch.float16}

FP8_RECIPES = {
    LowPrecision.fp8_delayed: "delayed",
    LowPrecision.fp8_current: "tensorwise",
    LowPrecision.fp8_blockwise: "blockwise",
    LowPrecision.mxfp8: "mxfp8",
}
"""Megatron's name of each recipe in 8 bits."""
# Scales of a whole tensor can't reach far enough for gradients in e4m3; scales of 32 or 128 values can.
_FP8_FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}


def precision_options(precision: Precision) -> Options:
    """Types of parameters and, where linear layers compute in fewer bits, how."""
    options = _dtypes(precision)
    match precision.low_precision:
        case None:
            return options
        case LowPrecision.nvfp4:
            return {**options, **_kept_in_dtype(precision), **_fp4(precision)}
        case low:
            return {**options, **_kept_in_dtype(precision), **_fp8(precision, FP8_RECIPES[low]), **_output(precision)}


def fp8_recipe(precision: Precision) -> str | None:
    """Megatron's name of the 8-bit recipe, as its optimizer wants it too; None: there is none."""
    return FP8_RECIPES.get(precision.low_precision) if precision.low_precision else None


def _dtypes(precision: Precision) -> Annotated[Options, TransformerConfig]:
    dtype = TORCH_DTYPES[precision.dtype]
    return dict(bf16=precision.dtype is DType.bf16, params_dtype=dtype, pipeline_dtype=dtype)


def _fp8(precision: Precision, recipe: str) -> Annotated[Options, TransformerConfig]:
    return dict(
        fp8=_FP8_FORMATS[recipe],
        fp8_recipe=recipe,
        fp8_param=precision.low_precision_params,
        fp8_amax_history_len=precision.amax_history,
        fp8_amax_compute_algo=precision.amax_compute.value,
    )


def _fp4(precision: Precision) -> Annotated[Options, TransformerConfig]:
    return dict(fp4="e2m1", fp4_recipe="nvfp4", fp4_param=precision.low_precision_params)


def _kept_in_dtype(precision: Precision) -> Annotated[Options, TransformerConfig]:
    return dict(
        first_last_layers_bf16=precision.first_layers + precision.last_layers > 0,
        num_layers_at_start_in_bf16=precision.first_layers,
        num_layers_at_end_in_bf16=precision.last_layers,
        disable_parameter_transpose_cache=not precision.cache_weights,
    )


def _output(precision: Precision) -> Options:
    # Not in megatron-core 0.16: named only where it is asked for, and refused before it gets there.
    return {"fp8_output_proj": True} if precision.low_precision_output else {}
