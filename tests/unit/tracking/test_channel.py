"""The event channel against a real unix socket: nothing it does is felt by training."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.tracking.channel import CAPACITY, LINE_LIMIT_BYTES, EventChannel


class Leader:
    """A node leader's end of the socket: keeps every whole line that arrives."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.messages: list[dict[str, Any]] = []
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    self.messages.append(json.loads(line))

    def events(self, count: int) -> list[dict[str, Any]]:
        """What arrived, once it is `count` events or ten seconds have gone."""
        until = time.monotonic() + 10
        while len(self.messages) < count + 1 and time.monotonic() < until:
            time.sleep(0.01)
        return [message for message in self.messages if message["message"] == "event"]

    def go_away(self) -> None:
        for end in [self._listener, *self._connections]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # the name of a unix socket has to be short
        yield Path(folder) / "leader"


@pytest.fixture
def appear(path: Path) -> Iterator[Callable[[], Leader]]:
    """Makes a leader appear; all go away at the end."""
    leaders: list[Leader] = []

    def one() -> Leader:
        leaders.append(Leader(path))
        return leaders[-1]

    yield one
    for leader in leaders:
        leader.go_away()


@pytest.fixture
def leader(appear: Callable[[], Leader]) -> Leader:
    return appear()


def test_events_arrive_in_order_after_the_rank_introduced_itself(path: Path, leader: Leader) -> None:
    channel = EventChannel(path, 3)
    before = time.time()
    channel.emit("phase", {"name": "build", "seconds": 1.5})
    channel.emit("metrics", {"step": 1, "values": {"loss": math.nan}})
    assert channel.close(10)
    leader.events(2)
    hello, phase, metrics = leader.messages
    assert hello == {"message": "worker", "rank": 3, "pid": os.getpid()}
    assert (phase["message"], phase["kind"], phase["rank"]) == ("event", "phase", 3)
    assert phase["data"] == {"name": "build", "seconds": 1.5}
    assert before <= phase["time"] <= time.time()
    assert math.isnan(metrics["data"]["values"]["loss"])


def test_emitting_takes_less_than_50_microseconds(path: Path, leader: Leader) -> None:
    channel = EventChannel(path, 0)
    data = {"step": 1, "values": {f"train/key{number}": 1.0 for number in range(8)}}
    took = []
    for _ in range(20_000):
        before = time.perf_counter()
        channel.emit("metrics", data)
        took.append(time.perf_counter() - before)
    assert channel.close(30)
    assert statistics.median(took) < 50e-6
    assert len(leader.events(20_000)) == 20_000


def test_a_leader_that_comes_late_gets_everything(path: Path, appear: Callable[[], Leader]) -> None:
    channel = EventChannel(path, 0)
    channel.emit("start", {})
    time.sleep(0.3)
    leader = appear()
    assert channel.close(10)
    assert [event["kind"] for event in leader.events(1)] == ["start"]


def test_a_leader_that_goes_away_is_not_felt_and_its_successor_gets_the_rest(
    path: Path, appear: Callable[[], Leader]
) -> None:
    first = appear()
    channel = EventChannel(path, 0)
    channel.emit("first", {})
    assert len(first.events(1)) == 1
    first.go_away()
    channel.emit("second", {})
    time.sleep(0.3)
    channel.emit("third", {})
    second = appear()
    assert channel.close(10)
    assert [event["kind"] for event in second.events(2)] == ["second", "third"]
    assert second.messages[0]["message"] == "worker"


def test_closing_without_a_leader_gives_up_in_time_and_says_so(path: Path) -> None:
    channel = EventChannel(path, 0)
    channel.emit("start", {})
    before = time.monotonic()
    assert channel.close(0.3) is False
    assert time.monotonic() - before < 2
    channel.emit("late", {})


def test_closing_returns_in_time_when_the_leader_does_not_read(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(os.fspath(path))
        deaf.listen()
        channel = EventChannel(path, 0)
        for _ in range(5000):
            channel.emit("metrics", {"text": "x" * 1000})
        assert channel.close(0.5) is False


def test_what_does_not_fit_the_queue_is_dropped_counted_and_reported(path: Path, appear: Callable[[], Leader]) -> None:
    channel = EventChannel(path, 0)
    for number in range(CAPACITY + 500):
        channel.emit("n", {"number": number})
    leader = appear()
    assert channel.close(60)
    events = leader.events(CAPACITY + 1)
    warnings = [event["data"]["message"] for event in events if event["kind"] == "warning"]
    arrived = [event["data"]["number"] for event in events if event["kind"] == "n"]
    assert arrived == list(range(CAPACITY))
    assert warnings == ["rank 0: 500 events were dropped, their queue was full or closed"]


def test_what_can_not_be_written_becomes_a_warning(path: Path, leader: Leader) -> None:
    channel = EventChannel(path, 0)
    circle: list[object] = []
    circle.append(circle)
    channel.emit("circle", {"circle": circle})
    channel.emit("long", {"text": "x" * LINE_LIMIT_BYTES})
    channel.emit("path", {"path": Path("/a")})
    assert channel.close(10)
    assert [event["kind"] for event in leader.events(3)] == ["warning", "warning", "path"]
    assert "'circle' can't be written" in leader.events(3)[0]["data"]["message"]
    assert leader.events(3)[2]["data"] == {"path": "/a"}
