"""Reads the GPUs of a node through NVML; a driver that doesn't know one of the questions leaves its answer out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from pipeline.tracking.telemetry.readings import GpuReading

T = TypeVar("T")

_GIB = 1 << 30
_KIB_PER_GIB = 1 << 20
_NANOSECONDS = 1e9
_ALL_LINKS = 0xFFFFFFFF
_NO_WAIT_MS = 0


class Gpus:
    """The GPUs with the given PCI bus ids, or all there are."""

    def __init__(self, bus_ids: Sequence[str] | None = None) -> None:
        """Raises pynvml.NVMLError where there is no driver."""
        pynvml.nvmlInit()
        found = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        by_id = {_bus_id(handle): handle for handle in found}
        self._handles = {name: handle for name, handle in by_id.items() if bus_ids is None or name in bus_ids}
        self._errors = self._listen_for_errors()

    def read(self) -> tuple[GpuReading, ...]:
        """One reading a GPU, in the order of their bus ids."""
        errors = self._new_errors()
        return tuple(_read(name, handle, errors.get(name, ())) for name, handle in sorted(self._handles.items()))

    def close(self) -> None:
        """Lets the driver go."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _listen_for_errors(self) -> Any | None:
        """An event set that hears of critical errors; None where the driver has none."""
        try:
            events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except (pynvml.NVMLError, AttributeError):
            return None
        return events

    def _new_errors(self) -> dict[str, tuple[int, ...]]:
        heard: dict[str, tuple[int, ...]] = {}
        if self._errors is None:
            return heard
        with contextlib.suppress(pynvml.NVMLError):  # ends with a timeout once nothing is left
            while True:
                event = pynvml.nvmlEventSetWait_v2(self._errors, _NO_WAIT_MS)
                name = _bus_id(event.device)
                heard[name] = (*heard.get(name, ()), int(event.eventData))
        return heard


def _bus_id(handle: Any) -> str:
    """As sysfs writes it: NVML's domain has eight digits."""
    text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    domain, rest = (text.decode() if isinstance(text, bytes) else text).lower().split(":", 1)
    return f"{domain[-4:]}:{rest}"


def _read(bus_id: str, handle: Any, xid: tuple[int, ...]) -> GpuReading:
    def ask(question: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return question(handle, *arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows)
    return GpuReading(
        bus_id=bus_id,
        power_w=_scaled(ask(pynvml.nvmlDeviceGetPowerUsage), 1e3),
        power_limit_w=_scaled(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit), 1e3),
        energy_j=_scaled(ask(pynvml.nvmlDeviceGetTotalEnergyConsumption), 1e3),
        temperature_c=_scaled(ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU), 1),
        memory_temperature_c=_scaled(_field(ask, pynvml.NVML_FI_DEV_MEMORY_TEMP), 1),
        sm_clock_mhz=_scaled(ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM), 1),
        memory_clock_mhz=_scaled(ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM), 1),
        utilisation_percent=None if rates is None else float(rates.gpu),
        memory_used_gib=None if memory is None else memory.used / _GIB,
        throttle_reasons=ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        thermal_violation_s=_violation(ask, pynvml.NVML_PERF_POLICY_THERMAL),
        power_violation_s=_violation(ask, pynvml.NVML_PERF_POLICY_POWER),
        ecc_uncorrected=ask(
            pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
        remapped_rows=None if rows is None else int(rows[1]),
        nvlink_sent_gib=_scaled(_field(ask, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS), _KIB_PER_GIB),
        nvlink_received_gib=_scaled(
            _field(ask, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS), _KIB_PER_GIB
        ),
        xid=xid,
    )


def _field(ask: Callable[..., Any], field: int, scope: int = 0) -> int | None:
    answers = ask(pynvml.nvmlDeviceGetFieldValues, [(field, scope)])
    if not answers or answers[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value = answers[0].value
    return int(value.uiVal if answers[0].valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else value.ullVal)


def _violation(ask: Callable[..., Any], policy: int) -> float | None:
    found = ask(pynvml.nvmlDeviceGetViolationStatus, policy)
    return None if found is None else found.violationTime / _NANOSECONDS


def _scaled(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
