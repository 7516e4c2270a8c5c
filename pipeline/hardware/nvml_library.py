"""The calls of NVML, one GPU after another; the only importer of pynvml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from pipeline.hardware.nvml import NvmlReading
from pipeline.hardware.topology import Gpu, MigInstance, device_order, normalize_bdf


def read() -> NvmlReading | None:
    """Every GPU that NVML shows; None without a driver, or where it fails."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = (_known(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(pynvml.nvmlDeviceGetCount()))
        gpus = [_gpu(handle) for handle in handles if handle is not None]
        driver = _known(pynvml.nvmlSystemGetDriverVersion)
        return NvmlReading(driver=driver, gpus=tuple(sorted(gpus, key=lambda gpu: device_order(gpu.bdf))))
    except pynvml.NVMLError:
        return None
    finally:
        _known(pynvml.nvmlShutdown)


def _known(ask: Callable[..., Any], *arguments: object) -> Any:
    """The answer; None where this GPU or this driver has none."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _gpu(handle: object) -> Gpu:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    capability = _known(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    milliwatts = _known(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return Gpu(
        bdf=_bdf(pci),
        uuid=_known(pynvml.nvmlDeviceGetUUID, handle),
        name=_known(pynvml.nvmlDeviceGetName, handle),
        minor=_known(pynvml.nvmlDeviceGetMinorNumber, handle),
        # The upper half is the device, the lower its maker.
        pci_device_id=f"{pci.pciDeviceId >> 16:04x}" if pci.pciDeviceId else None,
        compute_capability=10 * capability[0] + capability[1] if capability else None,
        memory_bytes=_memory(handle),
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
        mig=tuple(_mig_instances(handle)),
        is_reachable=True,
    )


def _bdf(pci: Any) -> str:
    bus_id = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return normalize_bdf(bus_id)


def _memory(handle: object) -> int | None:
    memory = _known(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _mig_instances(handle: object) -> Sequence[MigInstance]:
    mode = _known(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    places = range(_known(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    parts = (_known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places)
    return [_mig_instance(part) for part in parts if part is not None]


def _mig_instance(part: object) -> MigInstance:
    return MigInstance(
        uuid=_known(pynvml.nvmlDeviceGetUUID, part),
        gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(part),
        compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(part),
        memory_bytes=_memory(part),
    )
