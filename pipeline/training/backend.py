"""What training on a GPU and training on a CPU differ in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.training.support import refuse_missing_format
from pipeline.types import Experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """Modules of a transformer layer for devices on which Transformer Engine doesn't run."""

    core_attention: type[torch.nn.Module]
    rms_norm: type[torch.nn.Module]
    layer_norm: type[torch.nn.Module]
    latent_projection: type[torch.nn.Module]
    """A linear map that every tensor-parallel rank holds whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The device of this rank and what it brings."""

    device: torch.device
    collectives: str
    """torch.distributed's name for the library that ranks talk through."""
    parts: LayerParts | None
    """None: Transformer Engine builds the layers."""
    prepare_randomness: Callable[[], None] = lambda: None
    """Called before Megatron-Core seeds its random streams."""

    @property
    def is_cpu(self) -> bool:
        """Whether this rank computes on the CPU."""
        return self.device.type == "cpu"


def gpu_backend(local_rank: int, experiment: Experiment) -> Backend:
    """Makes the GPU with this index the current device and trains on it.

    Raises UserError where there is none, or no Transformer Engine; PlanRefused where it lacks the precision's format.
    """
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise UserError(
            f"local rank {local_rank} was planned a GPU and sees {found} here; check hardware=NAME and the job"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    refuse_missing_format(experiment.precision, torch.cuda.get_device_capability(device))
    if experiment.techniques.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    _require_transformer_engine()
    return Backend(device=device, collectives="nccl", parts=None)


def _require_transformer_engine() -> None:
    """Without it Megatron-Core has no layers for a GPU, and some of what was planned it would leave out quietly."""
    if importlib.util.find_spec("transformer_engine") is None:
        raise UserError(
            f"transformer_engine is not installed for {sys.executable}; install himori[gpu] there, or run in a "
            "container that has it"
        )


def gpu_bus_id(backend: Backend) -> str | None:
    """PCI bus id of the GPU as sysfs writes it; None without a GPU, or where this release of torch doesn't tell."""
    if backend.is_cpu:
        return None
    seen = torch.cuda.get_device_properties(backend.device)
    numbers = [getattr(seen, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if None in numbers:
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def describe(backend: Backend) -> dict[str, Any]:
    """Torch's version and the device, for the record."""
    if backend.is_cpu:
        return {"torch": torch.__version__, "device": "cpu"}
    name = torch.cuda.get_device_name(backend.device)
    return {"torch": torch.__version__, "device": name, "cuda": torch.version.cuda}
