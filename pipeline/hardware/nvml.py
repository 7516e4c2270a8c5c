"""What NVIDIA's driver tells of GPUs through NVML, where there is one, and how that joins what sysfs has."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.hardware.topology import Gpu

NVML_LIMIT_S = 5.0
"""A driver that hangs answers never; a node without its answers is still bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmlReading:
    """The GPUs the driver shows to this process."""

    driver: str | None
    """Its version."""
    gpus: tuple[Gpu, ...]
    """Without their places in the machine: those are sysfs' to tell."""


def read_nvml(limit_s: float = NVML_LIMIT_S) -> NvmlReading | None:
    """Asks NVML; None where there is none, it fails, or it takes longer than `limit_s`."""
    try:
        from pipeline.hardware import nvml_library
    except ModuleNotFoundError:  # a container of the vendor's may come without pynvml
        return None
    found: list[NvmlReading | None] = []

    def ask() -> None:
        found.append(nvml_library.read())

    asking = threading.Thread(target=ask, name="nvml", daemon=True)
    asking.start()
    asking.join(limit_s)
    return found[0] if found else None


def with_nvml(gpus: Sequence[Gpu], reading: NvmlReading) -> tuple[Gpu, ...]:
    """GPUs as sysfs has them with what the driver adds.

    One that the driver doesn't show is another's (a container, a device cgroup); one that sysfs hides is appended.
    """
    told = {gpu.bdf: gpu for gpu in reading.gpus}
    places = {gpu.bdf: gpu for gpu in gpus}
    joined = [_joined(gpu, told.get(gpu.bdf)) for gpu in gpus]
    return (*joined, *(gpu for bdf, gpu in told.items() if bdf not in places))


def _joined(place: Gpu, told: Gpu | None) -> Gpu:
    if told is None:
        return replace(place, is_reachable=False)
    return replace(
        told,
        uuid=told.uuid or place.uuid,
        name=told.name or place.name,
        minor=place.minor if told.minor is None else told.minor,
        pci_device_id=place.pci_device_id or told.pci_device_id,
        numa_node=place.numa_node,
        local_cpus=place.local_cpus,
        pci_path=place.pci_path,
    )
