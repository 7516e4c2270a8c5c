"""Reads a node's CPUs, memory, disk and RDMA ports."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from pipeline.tracking.telemetry.readings import HostReading

_GIB = 1 << 30
_BYTES_PER_WORD = 4
"""InfiniBand's port_xmit_data and port_rcv_data count words of four bytes."""
_ERRORS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards")


def read_host(disk: Path, *, sys_root: Path = Path("/sys")) -> HostReading:
    """One reading; the busy share is that since the call before, over all CPUs of the node."""
    memory, space = psutil.virtual_memory(), os.statvfs(disk)
    ports = list((sys_root / "class" / "infiniband").glob("*/ports/*/counters"))
    return HostReading(
        cpu_percent=psutil.cpu_percent(),
        load_1min=os.getloadavg()[0],
        memory_used_gib=memory.used / _GIB,
        memory_available_gib=memory.available / _GIB,
        disk_free_gib=space.f_bavail * space.f_frsize / _GIB,
        rdma_sent_gib=_total(ports, ("port_xmit_data",), _GIB / _BYTES_PER_WORD),
        rdma_received_gib=_total(ports, ("port_rcv_data",), _GIB / _BYTES_PER_WORD),
        rdma_errors=_count(ports, _ERRORS),
    )


def _total(ports: list[Path], names: tuple[str, ...], divisor: float) -> float | None:
    count = _count(ports, names)
    return None if count is None else count / divisor


def _count(ports: list[Path], names: tuple[str, ...]) -> int | None:
    """Sum of counters over all ports; None where there is none to read."""
    values = [_read(port / name) for port in ports for name in names]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _read(counter: Path) -> int | None:
    try:
        return int(counter.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
