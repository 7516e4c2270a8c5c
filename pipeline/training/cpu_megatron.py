"""What of Megatron-Core itself has to be replaced on a CPU, once it is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.distributed.fsdp import mcore_fsdp_adapter
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch.distributed.device_mesh import DeviceMesh

from pipeline.training.cpu_layers import LatentProjection


def replace_names() -> None:
    """Puts the replacements in place; each is needed by both ends of the range of releases unless it says so."""
    # Recomputation puts the GPU's random state back beside the host's; on a CPU the host's is all there is.
    megatron_random._get_cuda_rng_state = lambda *_, **__: None
    megatron_random._set_cuda_rng_state = lambda *_, **__: None
    # 0.16 binds the name only where Transformer Engine imports, and reads it in every router.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    token_dispatcher.maybe_move_tensor_to_cpu = _split_sizes
    # Without Transformer Engine these hold None or a mock, and modules are compared with them.
    multi_latent_attention.TELinear = LatentProjection
    mcore_fsdp_adapter.TELinear = LatentProjection
    # Recomputation that gives outputs up asks for the state of fp8 first.
    megatron_random.FP8GlobalStateManager = _NoFp8
    megatron_random.activation_recompute_forward = megatron_random.fp8_autocast = _as_it_is
    mcore_fsdp_adapter.DeviceMesh = _CpuMesh


def prepare_randomness() -> None:
    """A tracker of named random streams on the host's generator, where Megatron-Core would make one of the GPU's."""
    megatron_random._CUDA_RNG_STATE_TRACKER = _HostStreams()
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


class _NoFp8:
    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        pass


def _as_it_is(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class _CpuMesh:
    """Megatron-FSDP makes its mesh of GPUs, whatever device it is given."""

    @staticmethod
    def from_group(groups: Any, device_type: str, **options: Any) -> DeviceMesh:  # noqa: ARG004
        return DeviceMesh.from_group(groups, "cpu", **options)


def _split_sizes(values: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001
    """Megatron-Core turns sizes into what an all-to-all takes only when it has to bring them from a GPU."""
    return values.numpy() if as_numpy and torch.is_tensor(values) else values


class _HostStreams(CudaRNGStatesTracker):  # type: ignore[misc]  # Megatron is untyped to mypy
    """Named random streams, as on a GPU, of the host's generator."""

    def add(self, name: str, seed: int) -> None:
        """Starts a stream; raises ValueError when its name or its seed is taken."""
        if seed in self.seeds_ or name in self.states_:
            raise ValueError(f"random stream {name} with seed {seed}: one of the two is taken")
        self._is_initialized = True
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draws from the stream inside."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)
