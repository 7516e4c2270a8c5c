"""profile new and profile check: every recorded node makes a profile that composes, plans and is met by the node."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import cattrs
import pytest
import yaml
from support.cli import HIMORI
from unit.placement.recorded import NODES, snapshot_of

from pipeline.__main__ import main
from pipeline.calibration_files import shipped_calibration
from pipeline.config import load
from pipeline.hardware.recording import to_document
from pipeline.hardware.topology import Gpu, NodeSnapshot, NumaNode
from pipeline.placement.drift import Agreement, Comparison, compare_with_profile
from pipeline.planning.plan import make_plan
from pipeline.types import Confidence, HardwareProfile

PLANNED = [
    "experiment=demo",
    "cluster=slurm",
    "layout.tp=1",
    "ranks=null",
    "recipe.micro_batch=1",
    "recipe.global_batch=1680",
]


def recorded(path: Path, snapshot: NodeSnapshot) -> Path:
    path.write_text(yaml.safe_dump(to_document(snapshot), sort_keys=False))
    return path


def himori(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*HIMORI, "profile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def written(name: str, folder: Path) -> Path:
    """The profile `ours` of a recorded node."""
    recording = recorded(folder / "node.yaml", snapshot_of(name))
    path = folder / "mine" / "hardware" / "ours.yaml"
    assert main(["profile", "new", str(recording), "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("name", NODES)
def test_every_recorded_node_makes_a_profile_that_it_meets(name: str, tmp_path: Path) -> None:
    document = yaml.safe_load(written(name, tmp_path).read_text())
    assert document.pop("defaults") == ["_self_"]
    profile = cattrs.Converter(forbid_extra_keys=True).structure(document, HardwareProfile)
    rows = compare_with_profile(profile, snapshot_of(name))
    assert [row for row in rows if row.agreement is Agreement.differs] == []
    assert any(row.agreement is Agreement.same for row in rows)
    assert profile.gpus_per_node == len(snapshot_of(name).gpus)
    for part in (profile.node_spec, profile.gpu_spec):
        assert all(one.source and one.confidence is Confidence.high for one in (part.sources if part else {}).values())


# Without GPUs, with an uneven number, without a known NUMA node, with and without known NICs, with names.
@pytest.mark.parametrize("name", ["cpu-2socket-3-ranks", "b200x8-4numa-vm", "two-gpus-numa-na", "aws-p4d", "lassen"])
def test_the_profile_composes_and_plans(name: str, tmp_path: Path) -> None:
    folder = written(name, tmp_path).parents[1]
    experiment = load(["hardware=ours", *PLANNED], conf_dir=folder).experiment
    gpus = len(snapshot_of(name).gpus)
    assert [row for row in compare_with_profile(experiment.hardware, snapshot_of(name)) if is_wrong(row)] == []
    assert make_plan(experiment, shipped_calibration()).gpus_per_node == gpus


def is_wrong(row: Comparison) -> bool:
    return row.agreement is Agreement.differs


H200 = Gpu(
    bdf="0000:06:00.0",
    uuid="GPU-55",
    name="NVIDIA H200",
    pci_device_id="2335",
    compute_capability=90,
    memory_bytes=143771 << 20,
    power_limit_watts=700.0,
)


def with_gpu(gpu: Gpu) -> NodeSnapshot:
    return NodeSnapshot(
        nodes=(NumaNode(id=0, cpus=(0, 1), memory_total_bytes=4 << 30),),
        cores=((0, 1),),
        gpus=(gpu,),
        allowed=(0, 1),
        mems=(0,),
    )


def new(snapshot: NodeSnapshot, folder: Path) -> dict[str, Any]:
    done = himori("new", recorded(folder / "r.yaml", snapshot))
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = yaml.safe_load(done.stdout)
    return document


def test_a_gpu_we_have_numbers_for_is_named(tmp_path: Path) -> None:
    document = new(with_gpu(H200), tmp_path)
    assert document["defaults"] == [{"gpu@gpu_spec": "h200_sxm_141gb"}, "_self_"]
    assert "gpu_spec" not in document


def test_boards_of_one_name_are_told_apart_by_id_or_memory(tmp_path: Path) -> None:
    h100 = Gpu(bdf="0000:06:00.0", name="NVIDIA H100", memory_bytes=95830 << 20)
    assert new(with_gpu(h100), tmp_path)["defaults"][0] == {"gpu@gpu_spec": "h100_sxm5_94gb"}
    nvl = Gpu(bdf="0000:06:00.0", name="NVIDIA H100 NVL", memory_bytes=95830 << 20, pci_device_id="2321")
    assert new(with_gpu(nvl), tmp_path)["defaults"] == ["_self_"]


def test_of_another_gpu_what_is_known_is_written_and_the_rest_is_null(tmp_path: Path) -> None:
    gpu = Gpu(bdf="0000:06:00.0", name="NVIDIA X1", memory_bytes=1 << 30, compute_capability=120, pci_device_id="9999")
    document = new(with_gpu(gpu), tmp_path)
    spec = document["gpu_spec"]
    assert (spec["name"], spec["memory_mib_nvidia_smi"], spec["pci_device_id"]) == ("NVIDIA X1", 1024, "9999")
    assert (spec["memory_gib"], spec["hbm_tb_per_s"], spec["power_watts"], spec["peak_tflops"]) == (
        None,
        None,
        None,
        {},
    )
    assert set(spec["sources"]) == {"compute_capability", "memory_mib_nvidia_smi", "pci_device_id"}
    assert document["node_spec"]["nvlink_domain_gpus"] is None
    assert document["node_spec"]["host_memory_gib"] == 4.0


def test_this_node_makes_a_profile_that_it_meets(tmp_path: Path) -> None:
    path = tmp_path / "hardware" / "here.yaml"
    done = himori("new", "-o", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"plan --conf-dir {tmp_path} hardware=here" in done.stderr
    assert os.uname().nodename not in path.read_text().split()
    checked = himori("check", "here", "--conf-dir", tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert "0 of " in checked.stdout


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("precious")
    done = himori("new", "-o", path)
    assert (done.returncode, path.read_text()) == (2, "precious")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("new", "--name", "a b"), "--name: 'a b' can't be chosen"),
        (("new", "--name", "a", "-o", "b.yaml"), "must be named a.yaml"),
        (("new", "nowhere.yaml"), "nowhere.yaml can't be read"),
        (("check", "dgx_h20"), "did you mean dgx_h200?"),
        (("check", "dgx_h200", "nowhere"), "nowhere can't be read"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = himori(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_lscpu_alone_makes_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "lscpu.txt"
    lines = ("Thread(s) per core: 1", "Core(s) per socket: 2", "Socket(s): 1", "NUMA node(s): 1")
    path.write_text("\n".join([*lines, "NUMA node0 CPU(s): 0-1", "CPU(s): 2"]))
    done = himori("new", path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "don't tell of GPUs" in done.stderr


def test_check_says_what_differs_and_by_its_exit_code(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "b200.yaml", snapshot_of("b200x8-3numa"))
    done = himori("check", "dgx_b200", recording)
    assert done.returncode == 4
    assert "NUMA nodes with CPUs" in done.stdout
    as_json = himori("check", "sakura_phy_b200", recording, "--json")
    rows = {row["what"]: row for row in json.loads(as_json.stdout)["comparisons"]}
    assert (as_json.returncode, rows["NUMA nodes with CPUs"]["agreement"]) == (0, "as expected")
    assert (rows["NUMA nodes with CPUs"]["expected"], rows["NUMA nodes with CPUs"]["found"]) == ("3 or 6", "3")


def test_check_without_anything_to_compare_has_no_verdict() -> None:
    assert himori("check", "laptop").returncode == 8
