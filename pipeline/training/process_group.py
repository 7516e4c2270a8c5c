"""Brings the ranks of a run together, within a bounded time, and lets them agree on what they read."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from pipeline.training.backend import Backend
from pipeline.training.context import WorkerContext
from pipeline.training.failures import DataMismatch, RendezvousFailed

COLLECTIVE_TIMEOUT_MIN = 10
"""Longest that one collective may take, minutes; the first step on a GPU may compile for more than one."""

_ALL_HERE = "all-here"
_RANKS_NAMED = 8


def join(context: WorkerContext, backend: Backend, *, timeout_s: float) -> None:
    """Makes torch's default process group of all ranks.

    Raises RendezvousFailed, naming ranks that are missing, when they aren't all there within `timeout_s`.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        store = PrefixStore(f"attempt-{context.attempt}", _open_store(context, timeout))
        _meet(store, context, timeout)
    except dist.DistError as error:
        where = f"{context.master_addr}:{context.master_port}"
        raise RendezvousFailed(f"rendezvous at {where} failed within {timeout_s:g} s: {_first_line(error)}") from error
    dist.init_process_group(
        backend.collectives,
        store=store,
        rank=context.rank,
        world_size=context.world_size,
        timeout=datetime.timedelta(minutes=COLLECTIVE_TIMEOUT_MIN),
    )


def _open_store(context: WorkerContext, timeout: datetime.timedelta) -> TCPStore:
    return TCPStore(
        context.master_addr,
        context.master_port,
        context.world_size,
        is_master=context.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=context.listen_fd,
        # Releases of torch in our range differ in whether libuv's server takes over a listening socket.
        use_libuv=context.listen_fd is None,
    )


def _meet(store: Store, context: WorkerContext, timeout: datetime.timedelta) -> None:
    """Rank 0 waits for each rank's word, the others for rank 0's: a count alone couldn't say who is missing."""
    store.set(_word_of(context.rank), context.node)
    if context.rank != 0:
        store.wait([_ALL_HERE], timeout)
        return
    words = [_word_of(rank) for rank in range(context.world_size)]
    try:
        store.wait(words, timeout)
    except dist.DistStoreError:
        missing = [rank for rank, word in enumerate(words) if not store.check([word])]
        raise RendezvousFailed(
            f"{len(missing)} of {context.world_size} ranks did not report within {timeout.total_seconds():g} s: "
            f"{_some(missing)}"
        ) from None
    store.set(_ALL_HERE, "1")


def _word_of(rank: int) -> str:
    return f"rank-{rank}"


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_RANKS_NAMED])) + (", ..." if len(ranks) > _RANKS_NAMED else "")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def require_same_data(digest: bytes, device: torch.device) -> None:
    """Raises DataMismatch on every rank when any rank opened other data than the rest; `digest` is this rank's."""
    mine = int.from_bytes(hashlib.blake2b(digest, digest_size=7).digest(), "big")
    extremes = torch.tensor([mine, -mine], dtype=torch.int64, device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    if extremes.tolist() != [mine, -mine]:
        raise DataMismatch(
            f"data: the ranks read different data; this one's has the digest {mine:014x}; make what data.path, "
            "data.blend and data.validation_path name the same on every node"
        )
