"""Where the supervisors of a job find each other: a few ports that all of them derive from the job.

Rank 0 takes the first that is free; the others try them in turn and know the right one by the job's token.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ClusterError

FIRST_PORT, PORTS = 20000, 12000  # below 32768, where Linux takes ports for outgoing connections from
CANDIDATES = 16
MAX_SOCKET_PATH = 100  # a unix socket's path is limited to 107 bytes


def job_token(run_id: str, attempt: int, job_id: str) -> str:
    """Tells the supervisors of one attempt from all others; it keeps strangers apart, it is no secret."""
    return hashlib.sha256(f"{run_id}/{attempt}/{job_id}".encode()).hexdigest()[:16]


def candidate_ports(token: str) -> tuple[int, ...]:
    """The ports of a job, in the order they are tried."""
    start = int(token, 16)
    return tuple(FIRST_PORT + (start + 751 * index) % PORTS for index in range(CANDIDATES))


def listen(ports: Sequence[int], *, loopback: bool) -> tuple[socket.socket, int]:
    """A listening TCP socket on the first free port.

    Raises ClusterError when all are taken.
    """
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1" if loopback else "0.0.0.0", port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            continue
        return listener, port
    raise ClusterError(f"ports {', '.join(map(str, ports))} are all taken on this host; is another job stuck on it?")


def node_socket_path(token: str, node: str) -> Path:
    """The unix socket of a node's leader, in a folder of its own that only this user can enter.

    The node is part of its name: sites have temporary folders that several nodes share.

    Raises ClusterError when the folder belongs to somebody else.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > MAX_SOCKET_PATH - 50:
        base = Path("/tmp")
    folder = base / f"himori-{os.getuid()}-{hashlib.sha256(f'{token}/{node}'.encode()).hexdigest()[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(f"{folder} belongs to somebody else or is open to others; remove it and submit again")
    return folder / "leader.sock"
