"""What himori costs the host, beside what people use today for the same, measured in turn in one process.

Ratios are what counts: absolute times are of this machine and its load.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.config import load
from pipeline.sweep_config import load_sweep
from pipeline.tracking.channel import EventChannel

TURNS = 5
METRICS = {"train/loss": 2.5, "train/grad_norm": 0.8, "throughput/tokens_per_s": 5e4, "throughput/step_time_s": 1.2}
LEARNING_RATES = [f"{rate}e-4" for rate in range(1, 21)]


def median_s(measure: Callable[[], float]) -> float:
    """Median of a few turns, seconds."""
    return statistics.median(measure() for _ in range(TURNS))


def timed(action: Callable[[], object], times: int) -> float:
    """Seconds of one of `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times


def handing_over(folder: Path) -> tuple[float, float]:
    """One step's metrics from the training thread: into the channel, and by MLflow's client into sqlite."""
    from mlflow import MlflowClient

    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    run = client.create_run(client.create_experiment("bench", str(folder / "artifacts"))).info.run_id
    channel = EventChannel(_swallow(folder / "events.sock"), 0)
    ours = median_s(lambda: timed(lambda: channel.emit("metrics", {"step": 1, "values": METRICS}), 2000))
    channel.close(5)

    def log() -> None:
        for name, value in METRICS.items():
            client.log_metric(run, name, value, step=1)

    return ours, median_s(lambda: timed(log, 5))


def composing() -> tuple[float, float]:
    """Twenty points of a sweep: as a sweep, and each composed by itself as Hydra's multirun does."""
    axis = f"optimizer.lr={','.join(LEARNING_RATES)}"
    ours = median_s(lambda: timed(lambda: load_sweep(["experiment=demo", axis]), 1))
    one_by_one = median_s(
        lambda: timed(lambda: [load(["experiment=demo", f"optimizer.lr={rate}"]) for rate in LEARNING_RATES], 1)
    )
    return ours, one_by_one


def _swallow(path: Path) -> Path:
    """A socket that takes all that is sent to it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        while connection.recv(1 << 16):
            pass

    threading.Thread(target=serve, daemon=True).start()
    return path


def main() -> None:
    """Prints one row a comparison."""
    shown = Table("what", "himori", "beside it", "", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        rows = (
            ("a step's metrics from the training thread", handing_over(Path(folder)), "MlflowClient into sqlite"),
            ("composing 20 points of a sweep", composing(), "one Hydra compose a point"),
        )
    for what, (ours, theirs), peer in rows:
        shown.add_row(what, f"{ours * 1e3:.3g} ms", f"{theirs * 1e3:.3g} ms", peer, f"{theirs / ours:,.0f} times")
    Console(width=140).print(shown)


if __name__ == "__main__":
    main()
