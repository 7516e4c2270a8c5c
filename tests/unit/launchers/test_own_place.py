"""A rank keeps to its own mask, and a run inside of a bound process is not narrowed twice."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from unit.placement.recorded import local_ranks, snapshot_of

from launchers.own_place import allowed_cpus, complaint_about
from pipeline.hardware.topology import parse_ids
from pipeline.placement.binding import bind

BINDING = bind(snapshot_of("b200x8-6numa"), local_ranks(8))[2]


@pytest.mark.parametrize(
    ("environ", "allowed"),
    [
        ({}, "0-3"),
        ({"HIMORI_ALLOWED_CPUS": "0-15", "HIMORI_BOUND_CPUS": "0-3"}, "0-15"),
        ({"HIMORI_ALLOWED_CPUS": "0-15", "HIMORI_BOUND_CPUS": "0-1"}, "0-3"),
        ({"HIMORI_ALLOWED_CPUS": "0-15"}, "0-3"),
        ({"HIMORI_ALLOWED_CPUS": "many", "HIMORI_BOUND_CPUS": "0-3"}, "0-3"),
    ],
)
def test_only_a_process_that_we_narrowed_may_have_more(environ: dict[str, str], allowed: str) -> None:
    assert allowed_cpus(environ, parse_ids("0-3")) == parse_ids(allowed)


def test_a_place_within_the_mask_is_taken() -> None:
    assert complaint_about(BINDING, 2, BINDING.allowed) is None


def test_a_place_outside_of_the_mask_is_declined() -> None:
    complaint = complaint_about(BINDING, 2, BINDING.cpus[1:])
    assert complaint
    assert f"rank 2 was given CPUs {BINDING.cpus[0]}," in complaint


def test_the_place_of_another_rank_is_declined() -> None:
    other = dataclasses.replace(BINDING, rank=3)
    assert "the place of rank 3" in (complaint_about(other, 2, BINDING.allowed) or "")


def test_all_threads_of_a_supervisor_move_to_spare_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    program = f"""
import json, os, threading, time
from launchers.own_place import move_aside
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
move_aside((), {cpus})
before = sorted(os.sched_getaffinity(0))
move_aside(({cpus[-1]}, 1000), {cpus})
print(json.dumps([before] + [sorted(os.sched_getaffinity(int(one))) for one in os.listdir("/proc/self/task")]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [cpus, [cpus[-1]], [cpus[-1]]]
