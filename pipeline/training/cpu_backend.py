"""Everything Megatron-Core needs to train on a CPU over gloo: replacements of what it takes from CUDA.

Loaded on CPU runs only. `install` has to run before megatron.core is imported.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from pipeline.training.backend import Backend, LayerParts
from pipeline.training.cpu_layers import CausalAttention, LatentProjection, LayerNorm, RMSNorm

CPU = torch.device("cpu")

_GPU_ONLY = ("transformer_engine", "transformer_engine_torch", "apex")
"""Megatron takes their kernels for anything that trains; where no GPU can be seen they don't import, or fail on the
first step with an error of CUDA. An import of a None module fails as that of a missing one does."""

F = TypeVar("F", bound=Callable[..., Any])


def install() -> Backend:
    """Puts the replacements in place for the life of this process; call it in the main thread.

    `torch.cuda.is_available()` stays False.
    """
    for package in _GPU_ONLY:
        sys.modules[package] = None  # type: ignore[assignment]
    for owner, name, replacement in _REPLACEMENTS:
        setattr(owner, name, replacement)
    # Optimizers look at `.grad` of their shards, which are views; through the mode, torch warns of it.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # Backward passes on a CPU run in the thread that asked for them, so the main thread's mode covers them too.
    _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]
    # Only now can Megatron-Core be imported.
    from pipeline.training import cpu_megatron

    cpu_megatron.replace_names()
    parts = LayerParts(
        core_attention=CausalAttention, rms_norm=RMSNorm, layer_norm=LayerNorm, latent_projection=LatentProjection
    )
    return Backend(device=CPU, collectives="gloo", parts=parts, prepare_randomness=cpu_megatron.prepare_randomness)


# --------------------------------------------------------------------------- names of torch


def _uncompiled(function: F | None = None, **_: Any) -> Any:
    return function if function is not None else _uncompiled


class _Nothing:
    """A stream or an event where all work is done when a call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait_stream(self, _: object) -> None:
        """Nothing to wait for."""

    wait_event = wait_stream

    def record_event(self, _: object = None) -> _Nothing:
        """An event that has happened."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""

    record = wait = record_event

    def query(self) -> bool:
        """It has happened."""
        return True


def _nothing(*_: Any, **__: Any) -> _Nothing:
    return _Nothing()


_REPLACEMENTS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    # Megatron compiles its fused functions when it is imported: seconds of inductor on each rank, and a C++
    # compiler at the first step, for kernels that are no faster on a CPU.
    (torch, "compile", _uncompiled),
    # The device of gradient buffers, receive buffers and collectives' outputs is asked for by this name.
    (torch.cuda, "current_device", lambda: CPU),
    (torch.cuda, "synchronize", lambda *_, **__: None),
    # Dispatchers of experts and Megatron-FSDP put their work on streams of its own.
    (torch.cuda, "current_stream", _nothing),
    (torch.cuda, "default_stream", _nothing),
    (torch.cuda, "Stream", _Nothing),
    (torch.cuda, "Event", _Nothing),
    (torch.cuda, "stream", lambda _: contextlib.nullcontext()),
    # Megatron-FSDP hands the state of all generators to the tensor-parallel ranks.
    (torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state()),
    (torch.cuda, "set_rng_state", lambda *_, **__: None),
    (torch.cuda, "manual_seed", lambda _: None),
)


class _CudaMeansCpu(TorchFunctionMode):
    """Reads Megatron's literal "cuda" as "the device we compute on"."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # The schedules' token counter, the optimizers' flags and gradient clipping create tensors on "cuda".
        options = {**kwargs, "device": CPU} if kwargs and _is_cuda(kwargs.get("device")) else dict(kwargs or {})
        # Rotary embeddings under context parallelism stage their index in page-locked memory.
        options.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], CPU, *args[2:])
        if func is torch.device and args and _is_cuda(args[0]):
            # Megatron-FSDP makes its device of the current one's number.
            return CPU
        if func is torch.Tensor.type and len(args) == 1 and not options:
            # Optimizers tell the formats of parameters apart by names such as torch.cuda.FloatTensor.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **options)


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda")
