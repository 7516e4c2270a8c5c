"""On a real GPU with Transformer Engine: every precision learns, every way to save memory saves some, layouts agree.

One process trains all cases of one GPU, two train those of two: about 3 minutes. `pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_cases import LAYOUTS, MEMORY, PRECISIONS

if not Path("/dev/nvidiactl").exists():
    pytest.skip("no GPU here", allow_module_level=True)
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

Results = dict[str, dict[str, Any]]
HERE = Path(__file__).parent
FOR_TWO_GPUS = [name for name, case in LAYOUTS.items() if case.ranks == 2]


def run(folder: Path, ranks: int) -> Results:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, {torch.cuda.device_count()} are here")
    roots = [HERE, HERE.parents[1], HERE.parent / "unit" / "training", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    command = [sys.executable, "-W", "ignore", str(HERE / "gpu_runs.py")]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), str(folder)], env=environment) for rank in range(ranks)
    ]
    for process in processes:
        process.wait(800)
    results: Results = json.loads(Path(folder, "0.json").read_text())
    return results


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("two"), 2)


def result_of(results: Results, name: str) -> dict[str, Any]:
    found = results[name]
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("name", PRECISIONS)
def test_it_learns(name: str, single: Results) -> None:
    losses = result_of(single, name)["losses"]
    assert losses[-1] < losses[0] - 0.5, losses


@pytest.mark.parametrize("name", [name for name in PRECISIONS if name.startswith("fp8")])
def test_fp8_starts_where_bf16_does_and_is_not_bf16(name: str, single: Results) -> None:
    found, bf16 = result_of(single, name)["losses"], result_of(single, "bf16")["losses"]
    assert found[0] == pytest.approx(bf16[0], rel=0.02)
    assert found[-1] == pytest.approx(bf16[-1], rel=0.2)
    assert found != bf16


@pytest.mark.parametrize("name", [name for name in PRECISIONS if name.endswith("parameters")])
def test_parameters_are_kept_in_fp8(name: str, single: Results) -> None:
    assert any("Float8" in kind for kind in result_of(single, name)["types"])


@pytest.mark.parametrize("name", ["fp8 delayed", "fp8 current"])
def test_the_health_of_fp8_is_read(name: str, single: Results) -> None:
    health = result_of(single, name)["health"]
    assert health is not None
    assert health["fp8/amax"] > 0
    assert health["fp8/scale_max"] >= health["fp8/scale_min"] > 0
    assert health["fp8/not_finite"] == 0


def test_attention_is_fused(single: Results) -> None:
    assert result_of(single, "bf16")["attention"] in {"flash", "fused"}


@pytest.mark.parametrize("name", [name for name in MEMORY if name != "kept"])
def test_it_saves_memory_and_trains_the_same(name: str, single: Results) -> None:
    found, kept = result_of(single, name), result_of(single, "kept")
    assert found["peak_gib"] < kept["peak_gib"]
    assert found["losses"] == pytest.approx(kept["losses"], rel=0.01)


def test_the_linear_loss_is_the_fused_one(single: Results) -> None:
    found, native = result_of(single, "linear loss"), result_of(single, "bf16")
    assert found["losses"] == pytest.approx(native["losses"], rel=0.02)


def test_experts_and_latents_start_the_same_twice(single: Results) -> None:
    for name, first in (("experts one", "experts"), ("latent one", "latent")):
        assert result_of(single, name)["losses"][0] == pytest.approx(result_of(single, first)["losses"][0], rel=0.05)


@pytest.mark.parametrize("name", FOR_TWO_GPUS)
def test_layouts_agree(name: str, single: Results, double: Results) -> None:
    model = LAYOUTS[name].model
    one = result_of(single, "one" if model == "dense" else f"{model} one")
    found = result_of(double, name)
    assert found["losses"] == pytest.approx(one["losses"], rel=2e-3)
    assert found["norms"][0] == pytest.approx(one["norms"][0], rel=2e-2)
