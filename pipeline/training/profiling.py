"""Measures a window of steps: where their time goes, a trace, a snapshot of memory; the rest of a run isn't touched."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pipeline.rundir import write_text
from pipeline.training.events import EventSink
from pipeline.types import Profile, ProfileKind

PARTS = ("data", "forward", "backward", "communication_exposed", "optimizer", "other")
"""Of a step, in the order of the table; they sum to the step."""

_COMMUNICATION = ("recv", "send", "all-reduce", "all-gather", "grads-sync")


class StepTimers:
    """Timers by name in the form in which Megatron-Core calls them: `timers(name, log_level=…).start()`, `.stop()`.

    Each is a range for NVTX and torch's profiler too. `is_exact` waits for the device at both ends.
    """

    def __init__(self, device: torch.device, *, is_exact: bool) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._is_exact = is_exact
        self._open: dict[str, tuple[float, Any]] = {}

    def __call__(self, name: str, log_level: int | None = None) -> _Timer:  # noqa: ARG002 - Megatron's way to call
        return _Timer(self, name)

    def begin(self, name: str) -> None:
        """Opens a range."""
        mark = torch.profiler.record_function(name)
        mark.__enter__()
        if self._device.type == "cuda":
            torch.cuda.nvtx.range_push(name)
        self._wait()
        self._open[name] = (time.perf_counter(), mark)

    def end(self, name: str) -> None:
        """Closes it."""
        start, mark = self._open.pop(name)
        self._wait()
        self.seconds[name] += time.perf_counter() - start
        if self._device.type == "cuda":
            torch.cuda.nvtx.range_pop()
        mark.__exit__(None, None, None)

    def _wait(self) -> None:
        if self._is_exact and self._device.type == "cuda":
            torch.cuda.synchronize()


class _Timer:
    def __init__(self, timers: StepTimers, name: str) -> None:
        self._timers = timers
        self._name = name

    def start(self, barrier: bool = False) -> None:  # noqa: ARG002 - Megatron's way to call
        self._timers.begin(self._name)

    def stop(self, barrier: bool = False) -> None:  # noqa: ARG002 - Megatron's way to call
        self._timers.end(self._name)


class Profiler:
    """What one rank measures; outside of the window every call returns at once."""

    def __init__(
        self, options: Profile, *, rank: int, folder: Path, device: torch.device, sink: EventSink, configs: list[Any]
    ) -> None:
        """`configs` are Megatron's configurations that take timers; `folder` is where files go."""
        self._options = options
        self._chosen = options.kind is not ProfileKind.none and rank in options.ranks
        self._rank = rank
        self._folder = folder
        self._device = device
        self._sink = sink
        self._configs = configs
        self._timers: StepTimers | None = None
        self._trace: Any = None
        self._rows: list[dict[str, float]] = []

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around each step."""
        if not (self._chosen and self._first <= step <= self._last):
            yield
            return
        if self._timers is None:
            self._open()
        assert self._timers is not None
        self._timers.seconds.clear()
        began = time.perf_counter()
        with torch.profiler.record_function(f"step {step}"):
            yield
        if self._options.kind is ProfileKind.timers:
            self._take_row(step, time.perf_counter() - began)
        if step == self._last:
            self.close()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of a step that Megatron has no timer for: data, optimizer."""
        if self._timers is None:
            yield
            return
        self._timers.begin(name)
        yield
        self._timers.end(name)

    def close(self) -> None:
        """Ends the window, also one that the run ended before: what was measured is written."""
        if self._timers is None:
            return
        for config in self._configs:
            config.timers = None
        self._timers, self._chosen = None, False
        match self._options.kind:
            case ProfileKind.timers:
                self._write_table()
            case ProfileKind.torch:
                self._write_trace()
            case ProfileKind.memory:
                self._write_memory()
            case ProfileKind.nsys:
                torch.cuda.cudart().cudaProfilerStop()

    @property
    def _first(self) -> int:
        return self._options.first_step

    @property
    def _last(self) -> int:
        return self._options.first_step + self._options.steps - 1

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._timers = StepTimers(self._device, is_exact=self._options.kind is ProfileKind.timers)
        for config in self._configs:
            config.timers = self._timers
        match self._options.kind:
            case ProfileKind.torch:
                self._trace = _torch_profile(self._device, memory=False)
                self._trace.start()
            case ProfileKind.memory if self._device.type == "cuda":
                torch.cuda.memory._record_memory_history(max_entries=1_000_000)
            case ProfileKind.memory:
                self._trace = _torch_profile(self._device, memory=True)
                self._trace.start()
            case ProfileKind.nsys:
                torch.cuda.cudart().cudaProfilerStart()
            case _:
                pass

    # ----------------------------------------------------------------- files

    def _take_row(self, step: int, seconds: float) -> None:
        assert self._timers is not None
        row = breakdown(self._timers.seconds, seconds)
        self._rows.append(row)
        self._sink.emit("metrics", {"step": step, "values": {f"time/{part}_s": row[part] for part in PARTS}})

    def _write_table(self) -> None:
        text = table(self._rows, rank=self._rank)
        print(text, flush=True)
        write_text(self._path("timers", "txt"), text + "\n")
        write_text(self._path("timers", "json"), json.dumps(self._rows, indent=1) + "\n")
        self._tell("timers", "json")

    def _write_trace(self) -> None:
        self._trace.stop()
        self._trace.export_chrome_trace(str(self._path("trace", "json.gz")))
        self._tell("trace", "json.gz")

    def _write_memory(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.memory._dump_snapshot(str(self._path("memory", "pickle")))
            torch.cuda.memory._record_memory_history(enabled=None)
            self._tell("memory", "pickle")
            return
        self._trace.stop()
        averages = self._trace.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=40)
        write_text(self._path("memory", "txt"), averages + "\n")
        self._tell("memory", "txt")

    def _path(self, what: str, suffix: str) -> Path:
        return self._folder / f"{what}-rank{self._rank}.{suffix}"

    def _tell(self, what: str, suffix: str) -> None:
        self._sink.emit("profile", {"rank": self._rank, "path": str(self._path(what, suffix))})


def breakdown(seconds: dict[str, float], whole_s: float) -> dict[str, float]:
    """Megatron's timers of one step as the parts of the table, seconds; what none of them covers is `other`."""
    found = {
        "data": seconds.get("data", 0.0),
        "forward": seconds.get("forward-compute", 0.0) - seconds.get("data", 0.0),
        "backward": seconds.get("backward-compute", 0.0),
        "communication_exposed": sum(s for name, s in seconds.items() if _is_communication(name)),
        "optimizer": seconds.get("optimizer", 0.0) - seconds.get("params-all-gather", 0.0),
    }
    return {**found, "other": max(0.0, whole_s - sum(found.values()))}


def _is_communication(name: str) -> bool:
    # These two lie within all-grads-sync's sibling ranges or the optimizer's; each second is counted once.
    return any(name.endswith(word) for word in _COMMUNICATION)


def table(rows: list[dict[str, float]], *, rank: int) -> str:
    """Means over the window, milliseconds and shares."""
    if not rows:
        return f"rank {rank}: no step was measured"
    means = {part: sum(row[part] for row in rows) / len(rows) for part in PARTS}
    whole = sum(means.values()) or 1.0
    lines = [f"rank {rank}, mean of {len(rows)} steps        ms   share"]
    lines += [f"  {part:<24} {1000 * mean:>9.2f}  {mean / whole:>5.1%}" for part, mean in means.items()]
    lines.append(f"  {'step':<24} {1000 * whole:>9.2f}")
    return "\n".join(lines)


def _torch_profile(device: torch.device, *, memory: bool) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, profile_memory=memory, record_shapes=memory)


def timed_batches(batches: Iterator[Any], profiler: Profiler) -> Iterator[Any]:
    """The batches, each under the timer `data`."""
    with contextlib.suppress(StopIteration):
        while True:
            with profiler.part("data"):
                batch = next(batches)
            yield batch
