"""The sampler as a process, and the counters of a host read from files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from pipeline.rundir import AttemptDir
from pipeline.tracking.journal import Event, read_events
from pipeline.tracking.telemetry.host import read_host
from pipeline.tracking.telemetry.readings import from_data


def sampled(attempt: AttemptDir, *options: str, at_least: int) -> list[Event]:
    """Events of a sampler that was told to end once it had written some."""
    attempt.path.mkdir(parents=True)
    module = "pipeline.tracking.telemetry.sampler"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(attempt.path), "n1", "--every-s", "0.2", *options]
    )
    deadline = time.monotonic() + 30
    while len(read_events(attempt.telemetry("n1")).events) < at_least:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    return list(read_events(attempt.telemetry("n1")).events)


def test_it_samples_until_told_to_end_and_a_later_attempt_continues_the_series(tmp_path: Path) -> None:
    events = sampled(AttemptDir(tmp_path / "1"), "--as-curves", at_least=2)
    samples = [from_data(event.time, event.data) for event in events]
    assert len(samples) >= 3  # one more when it was told to end
    assert all(0 <= one.host.cpu_percent <= 100 and one.host.memory_used_gib > 0 for one in samples)
    assert all(event.data["step"] == int(one.elapsed_s) for event, one in zip(events, samples, strict=True))
    later = sampled(AttemptDir(tmp_path / "2"), at_least=1)
    again = from_data(later[0].time, later[0].data)
    assert again.elapsed_s >= samples[-1].elapsed_s
    assert abs((again.time - again.elapsed_s) - samples[0].time) < 0.01
    assert "values" not in later[0].data


def test_rdma_counters_are_summed_over_ports(tmp_path: Path) -> None:
    for device, words in (("mlx5_0", 1 << 28), ("mlx5_1", 1 << 29)):
        counters = tmp_path / "class" / "infiniband" / device / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n", encoding="ascii")
        (counters / "symbol_error").write_text("2\n", encoding="ascii")
        (counters / "port_rcv_data").write_text("N/A\n", encoding="ascii")
    found = read_host(tmp_path, sys_root=tmp_path)
    assert (found.rdma_sent_gib, found.rdma_received_gib, found.rdma_errors) == (3.0, None, 4)


def test_a_host_without_rdma_says_unknown(tmp_path: Path) -> None:
    found = read_host(tmp_path, sys_root=tmp_path)
    assert (found.rdma_sent_gib, found.rdma_errors) == (None, None)
