"""The journals of a run, read on from where the upload stands: points to send and facts to show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.rundir import AttemptDir, RunDir
from pipeline.tracking.journal import CHUNK_BYTES, Event, JournalChunk, read_events
from pipeline.tracking.points import Curves, Point
from pipeline.tracking.telemetry.readings import KIND as TELEMETRY
from pipeline.tracking.telemetry.readings import from_data
from pipeline.tracking.telemetry.totals import NodeTotals


@dataclass(frozen=True, slots=True)
class NodeBinding:
    """What a node's certificate says of all its ranks."""

    flags: frozenset[str]
    is_red: bool
    """Whether a rank is not where it was put."""
    drift: tuple[str, ...] = ()
    """Where it is not what the hardware profile expects."""


@dataclass(slots=True)
class Facts:
    """What the journals say about the run besides its curves."""

    first_time: float | None = None
    """Time of the first event, seconds since the epoch."""
    last_time: float | None = None
    environment: dict[str, object] = field(default_factory=dict)
    """The `environment` event of the newest attempt that has one."""
    environment_attempt: int = 0
    nodes: dict[int, set[str]] = field(default_factory=dict)
    """Names of the nodes that wrote something, by attempt."""
    bindings: dict[int, dict[str, NodeBinding]] = field(default_factory=dict)
    """Certificates by attempt and node."""
    telemetry: dict[tuple[int, str], NodeTotals] = field(default_factory=dict)
    """What the hardware did, by attempt and node."""
    damaged_lines: int = 0

    def absorb(self, event: Event, attempt: int) -> None:
        """Takes note of an event."""
        self.first_time = event.time if self.first_time is None else min(self.first_time, event.time)
        self.last_time = event.time if self.last_time is None else max(self.last_time, event.time)
        self.nodes.setdefault(attempt, set()).add(event.node)
        if event.kind == "environment" and attempt > self.environment_attempt:
            self.environment, self.environment_attempt = event.data, attempt
        if event.kind == TELEMETRY:
            self.telemetry.setdefault((attempt, event.node), NodeTotals()).absorb(from_data(event.time, event.data))
        if event.kind == "binding":
            self.bindings.setdefault(attempt, {})[event.node] = _node_binding(event.data)


def _node_binding(data: Mapping[str, object]) -> NodeBinding:
    return NodeBinding(
        flags=frozenset(_words(data.get("flags"))),
        is_red=bool(data.get("red")),
        drift=tuple(_words(data.get("drift"))),
    )


def _words(value: object) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class Portion:
    """What one reading found."""

    points: list[Point]
    offsets: dict[str, int]
    """Where every journal was read to."""


@dataclass(slots=True)
class Feed:
    """Reads the journals of all attempts, in the same order each time, and keeps curves and facts of what it read."""

    run: RunDir
    curves: Curves = field(default_factory=Curves)
    facts: Facts = field(default_factory=Facts)
    _suspects: dict[str, int] = field(default_factory=dict)

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Forgets all, then reads again what was uploaded, up to `offsets`."""
        self.curves, self.facts, self._suspects = Curves(), Facts(), {}
        reached: dict[str, int] = {}
        while (again := self._read(reached, offsets, final=True)).offsets != reached:
            reached = again.offsets

    def read(self, offsets: Mapping[str, int], *, final: bool) -> Portion:
        """Reads on from `offsets`, at most a chunk of each journal.

        On a network file system a line can look damaged while it arrives, so damage counts when it is seen a second
        time, or when the reading is `final`.
        """
        return self._read(offsets, None, final=final)

    def read_to(self, offsets: Mapping[str, int], ends: Mapping[str, int]) -> Portion:
        """Reads exactly from `offsets` to `ends`."""
        return self._read(offsets, ends, final=True)

    def _read(self, offsets: Mapping[str, int], ends: Mapping[str, int] | None, *, final: bool) -> Portion:
        points: list[Point] = []
        reached = dict(offsets)
        for attempt in self.run.attempts():
            whole = True
            for name in _journals(self.run, attempt):
                start = offsets.get(name, 0)
                limit = CHUNK_BYTES if ends is None else min(CHUNK_BYTES, ends.get(name, 0) - start)
                chunk = self._chunk(name, start, limit, final=final)
                points += self._absorb(chunk, attempt.number)
                reached[name] = chunk.offset
                whole = whole and chunk.offset - start < CHUNK_BYTES and name not in self._suspects
            if not whole:  # what an attempt repeats is only known once the attempts before it are read
                break
        return Portion(points, reached)

    def _absorb(self, chunk: JournalChunk, attempt: int) -> list[Point]:
        self.facts.damaged_lines += len(chunk.damaged)
        for event in chunk.events:
            self.facts.absorb(event, attempt)
        return [point for event in chunk.events for point in self.curves.absorb(event)]

    def _chunk(self, name: str, start: int, limit: int, *, final: bool) -> JournalChunk:
        path = self.run.path / name
        if limit <= 0 or path.stat().st_size <= start:
            return JournalChunk((), start, ())
        chunk = read_events(path, start, limit=limit)
        suspect = self._suspects.pop(name, None)
        if not chunk.damaged or final or suspect == chunk.damaged[0]:
            return chunk
        self._suspects[name] = chunk.damaged[0]
        return JournalChunk((), start, ())


def journal_sizes(run: RunDir) -> dict[str, int]:
    """Bytes of each journal, by path in the run directory."""
    return {name: (run.path / name).stat().st_size for attempt in run.attempts() for name in _journals(run, attempt)}


def _journals(run: RunDir, attempt: AttemptDir) -> list[str]:
    """Journals of an attempt as paths in the run directory, nodes by name, those of the hardware last."""
    found = [path for folder in (attempt.journal_dir, attempt.telemetry_dir) for path in sorted(folder.glob("*.jsonl"))]
    return [os.fspath(path.relative_to(run.path)) for path in found]
