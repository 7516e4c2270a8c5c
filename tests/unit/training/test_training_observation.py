"""What a rank finds out about its own place, from this kernel and from files of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.placement.certificate import Applied, KernelMemory, Moment, Refusal
from pipeline.training.context import read_context
from pipeline.training.observation import observe, page_bytes, read_policy

REFUSE = Path(__file__).resolve().parents[2] / "support" / "refuse.py"
GET_MEMPOLICY = 239
ENVIRON = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "20000",
    "HIMORI_ATTEMPT": "1",
    "HIMORI_NODE": "n1",
    "HIMORI_BINDING": "d1",
    "OMP_NUM_THREADS": "3",
    "HIMORI_APPLIED": json.dumps(
        {"affinity": True, "memory": None, "refused": [{"what": "memory", "asked": "preferred 0", "error": "EPERM"}]}
    ),
}
MAPS = """\
556ea3ff2000 default file=/usr/bin/head mapped=2 N0=2 kernelpagesize_kB=4
7f0000000000 {policy} anon=3 dirty=3 N0=1 N3=2 kernelpagesize_kB=2048
7ffc10000000 {policy} stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4
"""


def test_a_process_sees_itself() -> None:
    seen = observe(read_context(ENVIRON), Moment.model)
    assert set(seen.cpus) == os.sched_getaffinity(0)
    assert (seen.digest, seen.environment) == ("d1", {"OMP_NUM_THREADS": "3"})
    assert seen.mems_allowed
    assert seen.applied == Applied(
        affinity=True, memory=None, refused=(Refusal(what="memory", asked="preferred 0", error="EPERM"),)
    )
    assert sum((seen.page_bytes or {0: 1 << 20}).values()) >= 1 << 20


def test_an_unbound_worker_was_applied_nothing() -> None:
    bare = {key: value for key, value in ENVIRON.items() if key not in ("HIMORI_APPLIED", "HIMORI_BINDING")}
    seen = observe(read_context(bare), Moment.start)
    assert (seen.applied, seen.digest, seen.page_bytes) == (None, "", None)


def test_pages_are_summed_by_node(tmp_path: Path) -> None:
    (tmp_path / "numa_maps").write_text(MAPS.format(policy="default"))
    assert page_bytes(tmp_path) == {0: (2 + 512 + 3) * 4096, 3: 2 * 2048 * 1024}


def test_a_kernel_without_numa_tells_nothing(tmp_path: Path) -> None:
    assert page_bytes(tmp_path) is None
    assert observe(read_context(ENVIRON), Moment.start, proc=tmp_path).mems_allowed is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("default", KernelMemory(mode="default")),
        ("prefer:1", KernelMemory(mode="preferred", nodes=(1,))),
        ("prefer (many):0-1", KernelMemory(mode="preferred_many", nodes=(0, 1))),
        ("bind:0,2", KernelMemory(mode="bind", nodes=(0, 2))),
        ("bind=static:2", KernelMemory(mode="bind", nodes=(2,))),
    ],
)
def test_where_the_system_call_is_forbidden_the_stack_tells(
    tmp_path: Path, policy: str, expected: KernelMemory
) -> None:
    (tmp_path / "numa_maps").write_text(MAPS.format(policy=policy))
    program = (
        "import sys; from pathlib import Path; from pipeline.training.observation import read_policy; "
        "print(read_policy(Path(sys.argv[1])), read_policy(Path('/nowhere')), sep='|')"
    )
    command = [sys.executable, str(REFUSE), str(GET_MEMPOLICY), sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"{expected}|None"


def test_the_system_call_tells() -> None:
    assert read_policy(Path("/nowhere")) == KernelMemory(mode="default")


def test_the_worker_looks_before_torch_is_there() -> None:
    program = (
        "import sys; from pipeline.training import observation, worker; print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
