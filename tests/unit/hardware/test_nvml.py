"""NVML through a library of ours that looks like NVIDIA's, read by the real pynvml, joined with what sysfs has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_tree import write_files, write_tree
from support.cli import HIMORI

from pipeline.hardware.nvml import NvmlReading, read_nvml, with_nvml
from pipeline.hardware.recording import anonymous, from_document, to_document
from pipeline.hardware.snapshot import read_snapshot
from pipeline.hardware.topology import Gpu, MigInstance, NodeSnapshot, NumaNode

SOURCE = Path(__file__).parents[2] / "support" / "fake_nvml.c"
# The first line is what an H200 answered on 2026-11-30, driver 580.159.04, but for its UUID.
GPUS = """\
gpu 00000000:A0:00.0 GPU-aa11-x 0 150754820096 700000 90 2335 NVIDIA H200
gpu 00000000:20:00.0 GPU-aa22-y 2 85520809984 0 90 2330 NVIDIA H100 80GB HBM3
mig MIG-51 1 0 19327352832
mig MIG-52 2 0 19327352832
gpu 00000000:30:00.0 GPU-bb33-z 1 0 250000 75 1eb8 Tesla T4
gpu 00000000:40:00.0 GPU-cc 3 1 1 90 2335 lost
"""
BUSES = ["0000:20:00.0", "0000:30:00.0", "0000:a0:00.0"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler (cc)")
    folder = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    (folder / "gpus").write_text(GPUS)
    return folder


def environment(library: Path, **variables: str) -> Mapping[str, str]:
    return os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(library / "gpus"), **variables}


def reading(library: Path, *, limit_s: float = 5.0, **variables: str) -> NvmlReading | None:
    """What `read_nvml` returns in a process that finds the library."""
    code = f"from pipeline.hardware.nvml import read_nvml; print(repr(read_nvml({limit_s})), flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport os; os._exit(0)"],
        env=environment(library, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = {"NvmlReading": NvmlReading, "Gpu": Gpu, "MigInstance": MigInstance}
    found: NvmlReading | None = eval(done.stdout, names)
    return found


def test_all_that_the_driver_tells(library: Path) -> None:
    found = reading(library)
    assert found
    assert found.driver == "580.159.04"
    assert [gpu.bdf for gpu in found.gpus] == BUSES
    h100, t4, h200 = found.gpus
    assert h200 == Gpu(
        bdf="0000:a0:00.0",
        uuid="GPU-aa11-x",
        name="NVIDIA H200",
        minor=0,
        pci_device_id="2335",
        compute_capability=90,
        memory_bytes=143771 << 20,
        power_limit_watts=700.0,
        is_reachable=True,
    )
    assert [(part.uuid, part.gpu_instance, part.memory_bytes) for part in h100.mig] == [
        ("MIG-51", 1, 18 << 30),
        ("MIG-52", 2, 18 << 30),
    ]
    assert (h100.power_limit_watts, t4.memory_bytes, t4.compute_capability, t4.mig) == (None, None, 75, ())


def test_no_driver_is_no_reading(library: Path) -> None:
    assert reading(library, FAKE_NVML="fail") is None
    assert read_nvml() is None or Path("/proc/driver/nvidia").exists()


def test_a_driver_that_hangs_is_not_waited_for(library: Path) -> None:
    assert reading(library, limit_s=0.3, FAKE_NVML="hang") is None


def probed(library: Path, ranks: int, **variables: str) -> dict[str, Any]:
    command = [*HIMORI, "probe", "--json", "--ranks", str(ranks)]
    done = subprocess.run(
        command, env=environment(library, **variables), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        (None, [0, 1, 2]),
        ("2,0", [0, 2]),
        ("GPU-aa11-x,GPU-bb", [1, 2]),
        ("MIG-52", [0]),
        ("MIG-GPU-aa22-y/1/0,GPU-aa1", [0, 2]),
        ("1,-1,0", [1]),
    ],
)
def test_visible_devices_in_all_forms_are_bus_ids(library: Path, visible: str | None, places: list[int]) -> None:
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    found = probed(library, len(places), **variables)
    assert found["snapshot"]["job_gpus"] == [BUSES[place] for place in places]
    assert [binding["gpu"] for binding in found["bindings"]] == [BUSES[place] for place in places]


PLACE = Gpu(
    bdf="0000:20:00.0",
    uuid="GPU-from-proc",
    name="from proc",
    minor=7,
    numa_node=1,
    local_cpus=(1,),
    pci_path=("pci0000:20", "0000:20:00.0"),
)
MACHINE = NodeSnapshot(
    nodes=(NumaNode(id=0, cpus=(0,)), NumaNode(id=1, cpus=(1,))),
    cores=((0,), (1,)),
    allowed=(0, 1),
    mems=(0, 1),
    gpus=(PLACE,),
)


def test_the_driver_is_joined_by_bus_id() -> None:
    told = Gpu(bdf=PLACE.bdf, uuid="GPU-1", name="NVIDIA H200", memory_bytes=1, is_reachable=True)
    (joined,) = with_nvml([PLACE], NvmlReading(driver="1", gpus=(told,)))
    assert (joined.uuid, joined.name, joined.minor, joined.memory_bytes) == ("GPU-1", "NVIDIA H200", 7, 1)
    assert (joined.numa_node, joined.local_cpus, joined.pci_path) == (1, (1,), PLACE.pci_path)


def test_what_one_side_hides_the_other_shows() -> None:
    other = Gpu(bdf="0000:90:00.0", is_reachable=True)
    hidden, appended = with_nvml([PLACE], NvmlReading(driver=None, gpus=(other,)))
    assert (hidden.bdf, hidden.is_reachable) == (PLACE.bdf, False)
    assert appended == other


def test_the_snapshot_has_both(tmp_path: Path) -> None:
    write_tree(tmp_path, MACHINE)
    write_files(tmp_path, {"sys/module/nvidia/version": "570.1"})
    told = Gpu(bdf=PLACE.bdf, uuid="GPU-1", memory_bytes=5, is_reachable=True)
    bare = read_snapshot(tmp_path)
    joined = read_snapshot(tmp_path, job_gpus=["GPU-1"], nvml=NvmlReading(driver="580.1", gpus=(told,)))
    assert (bare.driver, bare.gpus[0].memory_bytes, bare.gpus[0].is_reachable) == ("570.1", None, None)
    assert (joined.driver, joined.gpus[0].memory_bytes, joined.job_gpus) == ("580.1", 5, (PLACE.bdf,))


def test_a_recording_keeps_what_the_driver_told_but_no_serial_numbers(library: Path, tmp_path: Path) -> None:
    found = reading(library)
    assert found
    write_tree(tmp_path, MACHINE)
    snapshot = read_snapshot(tmp_path, nvml=found)
    assert from_document(to_document(snapshot)) == snapshot
    text = json.dumps(to_document(anonymous(snapshot)))
    assert "GPU-" not in text
    assert "MIG-" not in text
    assert from_document(json.loads(text)).gpus[1].memory_bytes == snapshot.gpus[1].memory_bytes
