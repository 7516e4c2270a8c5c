"""What a worker reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.training.context import WorkerContext, read_context
from pipeline.training.events import PrintedEvents, open_sink

COMPLETE = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "HIMORI_ATTEMPT": "2",
    "HIMORI_NODE": "node2",
}


def test_all_variables_are_read() -> None:
    context = read_context({**COMPLETE, "HIMORI_EVENTS": "/run/leader.sock", "HIMORI_LISTEN_FD": "7"})
    assert context == WorkerContext(
        rank=3,
        world_size=4,
        local_rank=1,
        master_addr="node1",
        master_port=29500,
        attempt=2,
        node="node2",
        events=Path("/run/leader.sock"),
        listen_fd=7,
    )


@pytest.mark.parametrize("unset", [{}, {"HIMORI_EVENTS": "", "HIMORI_LISTEN_FD": ""}], ids=["absent", "empty"])
def test_without_a_leader_events_are_printed(unset: dict[str, str]) -> None:
    context = read_context({**COMPLETE, **unset})
    assert context.events is None
    assert context.listen_fd is None
    assert isinstance(open_sink(context), PrintedEvents)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name} is not set"):
        read_context({key: value for key, value in COMPLETE.items() if key != name})


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "HIMORI_ATTEMPT"])
def test_a_variable_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name}='x' is not a whole number"):
        read_context({**COMPLETE, name: "x"})
