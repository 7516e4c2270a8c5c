"""Which attention kernel Transformer Engine chose: it falls back to one that is many times slower without a word."""

from __future__ import annotations

import sys
from collections.abc import Mapping

_STATE = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"
_KERNELS = {
    "use_flash_attention": "flash",
    "use_fused_attention": "fused",
    "use_unfused_attention": "unfused",
}


def chosen_kernel() -> str | None:
    """flash, fused or unfused, once a layer has run; None where it isn't known, as on a CPU."""
    state = getattr(sys.modules.get(_STATE), "_attention_backends", None)
    return kernel_of(state) if isinstance(state, Mapping) else None


def kernel_of(state: Mapping[str, object]) -> str | None:
    """The kernel that Transformer Engine's record names."""
    return next((kernel for name, kernel in _KERNELS.items() if state.get(name)), None)


def warning_of(kernel: str | None) -> str | None:
    """What there is to say of a kernel; None: nothing."""
    if kernel != "unfused":
        return None
    return (
        "attention runs unfused, up to 15 times slower: Transformer Engine found no flash or fused kernel for this "
        "shape and mask; look at its cuDNN (CUDNN_PATH and LD_LIBRARY_PATH have to name the same), or set NVTE_DEBUG=1 "
        "NVTE_DEBUG_LEVEL=2 to see why"
    )
