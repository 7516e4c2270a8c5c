"""How a run is watched from within: what guards its numbers, and what is measured of some of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class SpikeAction(Enum):
    """What becomes of a run whose loss jumps."""

    warn = "warn"
    """It goes on; the batch is named."""
    end = "end"
    """It ends; the batch is named."""
    ignore = "ignore"


@dataclass(kw_only=True, slots=True)
class Guard:
    """What watches over the numbers of a run; a loss or gradient that isn't finite always ends it."""

    on_spike: SpikeAction = SpikeAction.warn
    spike_deviations: float = 10.0
    """How far above the median of the last 64 losses a spike is, in robust standard deviations of them."""
    rerun: bool = False
    """Run a step again whose loss or gradients aren't finite or whose loss spikes: where the outcome differs, it is the
    machine and not the numbers. Costs a copy of the random generators' states each step."""
    data_checksum: bool = False
    """Compare the tokens of each step among ranks that must have the same, and record their checksum."""


class ProfileKind(Enum):
    """What is measured of the steps of the window."""

    none = "none"
    timers = "timers"
    """Where the time of a step goes: data, forward, backward, exposed communication, optimizer."""
    torch = "torch"
    """A trace of torch's profiler."""
    memory = "memory"
    """A snapshot of the GPU's memory with the stack of each allocation; on a CPU, a profile of allocations."""
    nsys = "nsys"
    """Nsight Systems around the worker, with ranges by name."""


@dataclass(kw_only=True, slots=True)
class Profile:
    """What is measured of which steps on which ranks; files go to the attempt's directory and to MLflow."""

    name: str = "none"
    kind: ProfileKind = ProfileKind.none
    first_step: int = 10
    """First step of the window, counted from the beginning of the run; a later attempt has no window before it."""
    steps: int = 3
    """Steps in the window."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that are measured."""
