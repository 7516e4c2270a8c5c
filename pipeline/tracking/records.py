"""The record of a run: made from its directory when it is over, kept in `record.json`, made again when it is stale."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.analysis.record import AttemptFacts, build_record, highest
from pipeline.errors import RunDirError
from pipeline.rundir import AttemptDir, RunDir, read_json, write_json
from pipeline.tracking.feed import journal_sizes
from pipeline.tracking.journal import Event, read_events
from pipeline.tracking.provenance import read_provenance
from pipeline.types import End, RankMemory, RunRecord

STEP_S = "throughput/step_time_s"
_VERSIONS = ("python", "torch", "megatron_core", "transformer_engine", "cuda", "nccl", "driver")


def current_record(run: RunDir) -> RunRecord:
    """The record of a run as its directory stands; written where the run is over and the directory can be written.

    Raises RunDirError when a file of the run is damaged.
    """
    stored = _stored(run)
    if stored is not None and _is_current(run, stored):
        return stored
    record = make_record(run)
    if record.state.is_final and _end(run) is not None:
        with contextlib.suppress(OSError):  # somebody else's run: it can be read, not written
            write_json(run.record_file, record)
    return record


def make_record(run: RunDir) -> RunRecord:
    """Reads everything and computes the record anew; nothing is written."""
    journal_bytes = sum(journal_sizes(run).values())
    attempts = [_facts(attempt) for attempt in run.attempts()]
    provenance = read_provenance(run)
    if attempts and not attempts[-1].versions and provenance is not None:
        planned = {name: version for name, version in provenance.versions.items() if version is not None}
        attempts[-1] = replace(attempts[-1], versions=planned)
    return build_record(
        run_id=run.run_id,
        experiment=run.read_experiment(),
        plan=run.read_plan(),
        attempts=attempts,
        end=_end(run),
        journal_bytes=journal_bytes,
    )


def _stored(run: RunDir) -> RunRecord | None:
    """What stands in the file; None where there is none, or one of another version."""
    try:
        return read_json(run.record_file, RunRecord)
    except (FileNotFoundError, RunDirError):
        return None


def _is_current(run: RunDir, record: RunRecord) -> bool:
    end = _end(run)
    if end is None or (end.state, end.message) != (record.state, record.message):
        return False
    return record.journal_bytes == sum(journal_sizes(run).values()) and record.attempts == len(run.attempts())


def _end(run: RunDir) -> End | None:
    attempt = run.last_attempt()
    return attempt.read_end() if attempt else None


# --------------------------------------------------------------------------- journals


@dataclass(slots=True)
class _Reading:
    step_s: dict[int, float] = field(default_factory=dict)
    memory: dict[int, RankMemory] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    red: set[int] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)

    def absorb(self, event: Event) -> None:
        match event.kind:
            case "metrics":
                self._metrics(event.data)
            case "memory" if event.rank is not None:
                self._memory(event.rank, event.data)
            case "binding":
                self.flags |= {flag for flag in _list(event.data, "flags") if isinstance(flag, str)}
                self.red |= {rank for rank in _list(event.data, "red") if isinstance(rank, int)}
            case "environment":
                self.versions |= {name: str(event.data[name]) for name in _VERSIONS if event.data.get(name)}
            case _:
                pass

    def _metrics(self, data: Mapping[str, object]) -> None:
        step, values = data.get("step"), data.get("values")
        seconds = values.get(STEP_S) if isinstance(values, Mapping) else None
        if isinstance(step, int) and isinstance(seconds, float) and seconds > 0:
            self.step_s.setdefault(step, seconds)

    def _memory(self, rank: int, data: Mapping[str, object]) -> None:
        allocated, reserved = data.get("allocated_gib"), data.get("reserved_gib")
        if isinstance(allocated, float) and isinstance(reserved, float):
            use = RankMemory(rank=rank, allocated_gib=allocated, reserved_gib=reserved)
            self.memory[rank] = highest(self.memory.get(rank), use)


def _list(data: Mapping[str, object], key: str) -> Sequence[object]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _facts(attempt: AttemptDir) -> AttemptFacts:
    reading = _Reading()
    for path in sorted(attempt.journal_dir.glob("*.jsonl")):
        offset, chunk = -1, read_events(path)
        while chunk.offset != offset:
            for event in chunk.events:
                reading.absorb(event)
            offset = chunk.offset
            chunk = read_events(path, offset)
    return AttemptFacts(
        step_s=reading.step_s,
        memory=reading.memory,
        binding_flags=tuple(sorted(reading.flags)),
        misplaced_ranks=tuple(sorted(reading.red)),
        versions=reading.versions,
    )
