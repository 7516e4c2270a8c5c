"""One line a message; strangers are turned away."""

from __future__ import annotations

import asyncio

import pytest
from unit.placement.recorded import local_ranks, snapshot_of

from launchers.messages import (
    Bye,
    Declined,
    Exited,
    Hello,
    Look,
    LookAround,
    Looked,
    Message,
    Notice,
    Peer,
    Placed,
    Silent,
    Start,
    Stop,
    StopCause,
    WorkerEvent,
    decode,
    encode,
)
from pipeline.placement.binding import bind
from pipeline.types import RankExit

MESSAGES: list[Message] = [
    Hello(token="t", rank=1, local_rank=1, cpus=(0, 3)),
    Placed(binding=bind(snapshot_of("dgxh100-12nic"), local_ranks(8))[3], digest="d", spare=(1, 5)),
    Placed(binding=None, digest="", spare=()),
    Declined(rank=2, reason="CPUs"),
    Start(address="n1", port=20000),
    Exited(exit=RankExit(rank=0, node="n1", exit_code=None, signal=9, stopped=False, tail=("ü\n",), time=1.0)),
    Stop(cause=StopCause.cancelled, reason="by hand"),
    WorkerEvent(kind="metrics", time=2.0, rank=0, data={"step": 1, "values": {"train/loss": 2.5}}),
    Bye(exit_code=0),
    Notice(reason="told to make room (SIGUSR2)"),
    Silent(rank=3),
    LookAround(),
    Looked(
        node_rank=1,
        looks=(Look(rank=2, node="n2", step=7, doing="step", silent_s=9.5, process_state="T", stack=("File", "x")),),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"GET / HTTP/1.1\r\n", b"{}\n", b'{"message": "bye"}\n', b'{"message": "x"}\n', b"[1]\n"]
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(line)


def test_a_peer_that_talks_nonsense_counts_as_gone() -> None:
    async def talk() -> Message | None:
        reader = asyncio.StreamReader(limit=100)
        reader.feed_data(b"x" * 1000)
        reader.feed_eof()
        return await Peer(reader, None).receive()  # type: ignore[arg-type]

    assert asyncio.run(talk()) is None
