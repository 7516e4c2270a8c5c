"""The sampler of a node: a process of its own on spare CPUs that writes the node's telemetry journal.

    python -P -m pipeline.tracking.telemetry.sampler ATTEMPT_DIR NODE --every-s 5

Ends on SIGTERM. A node without an NVIDIA driver is sampled without GPUs; a full disk ends the sampling, not the run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.rundir import AttemptDir
from pipeline.tracking.journal import Event, JournalWriter, read_events
from pipeline.tracking.telemetry.host import read_host
from pipeline.tracking.telemetry.readings import KIND, Sample, to_data

if TYPE_CHECKING:
    from pipeline.tracking.telemetry.gpus import Gpus

FIRST_S = 0.5
"""Over which the busy share of the first sample is taken."""


def main(argv: Sequence[str] | None = None) -> int:
    """Samples until told to stop; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt_dir", type=Path)
    parser.add_argument("node")
    parser.add_argument("--every-s", type=float, default=5.0)
    parser.add_argument("--as-curves", action="store_true", help="MLflow shows this node's samples")
    arguments = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    attempt = AttemptDir(arguments.attempt_dir)
    try:
        sample_until(stop, attempt, arguments.node, arguments.every_s, as_curves=arguments.as_curves)
    except OSError as error:
        print(f"telemetry of {arguments.node} ends: {error}", file=sys.stderr)
        return 1
    return 0


def sample_until(stop: threading.Event, attempt: AttemptDir, node: str, every_s: float, *, as_curves: bool) -> None:
    """Appends a sample now, then every `every_s` seconds, and a last one when told to stop; raises OSError."""
    gpus = _open_gpus()
    origin = _origin(attempt, node)
    read_host(attempt.path)  # the busy share is that since the call before
    stop.wait(FIRST_S)
    with JournalWriter(attempt.telemetry(node)) as journal:
        while True:
            stopped = stop.is_set()
            now = time.time()
            sample = Sample(
                time=now,
                elapsed_s=now - origin,
                host=read_host(attempt.path),
                gpus=gpus.read() if gpus else (),
            )
            journal.append(Event(KIND, now, node, None, to_data(sample, as_curves=as_curves)))
            if stopped:
                return
            stop.wait(every_s)


def _origin(attempt: AttemptDir, node: str) -> float:
    """Time of the run's first sample on this node: attempts continue one series."""
    earlier = (AttemptDir(attempt.path.parent / str(number)) for number in range(1, attempt.number))
    for one in earlier:
        chunk = read_events(one.telemetry(node), limit=1)
        if chunk.events:
            return chunk.events[0].time
    return time.time()


def _open_gpus() -> Gpus | None:
    """The GPUs of the node; None where no driver answers."""
    import pynvml

    from pipeline.tracking.telemetry.gpus import Gpus

    try:
        return Gpus()
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.exit(main())
