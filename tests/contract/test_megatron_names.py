"""Every name, keyword and attribute of Megatron-Core that the adapter uses exists at both ends of our range."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from megatron_sources import Release, Use, installed_release, missing, uses, wheel_release

import pipeline.training

TRAINING = Path(pipeline.training.__path__[0])
ADAPTERS = sorted([*TRAINING.glob("megatron*.py"), *TRAINING.glob("megatron/*.py"), TRAINING / "cpu_megatron.py"])
ENDS = {"0.16.1": "3.11", "0.19.2": "3.12"}
"""The oldest and the newest release, each with a Python that it has a wheel for."""

USES = sorted({use for adapter in ADAPTERS for use in uses(adapter.read_text(), "megatron")})


@pytest.fixture(scope="module", params=ENDS)
def release(request: pytest.FixtureRequest) -> Release:
    version: str = request.param
    installed = importlib.metadata.distribution("megatron-core")
    if installed.version == version:
        return installed_release(Path(str(installed.locate_file(""))))
    return wheel_release(_fetch(version, request.config.cache.mkdir("megatron-core")))


def _fetch(version: str, folder: Path) -> Path:
    found = list(folder.glob(f"megatron_core-{version}-*.whl"))
    if found:
        return found[0]
    command = (
        f"{sys.executable} -m pip download --quiet --no-deps --only-binary=:all: --python-version {ENDS[version]} "
        f"--dest {folder} megatron-core=={version}"
    )
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0 and "CI" not in os.environ:
        pytest.skip(f"megatron-core {version} can't be fetched: {done.stderr.strip().splitlines()[-1:]}")
    assert done.returncode == 0, done.stderr
    return next(folder.glob(f"megatron_core-{version}-*.whl"))


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.name}.{use.attribute}" if use.attribute else use.name)
def test_what_the_adapter_uses_exists(use: Use, release: Release) -> None:
    assert missing(use, release) is None


@pytest.mark.parametrize(
    "use",
    [
        Use("megatron.core.optimizer", "OptimizerConfig", ("lr", "clip_grad")),
        Use("megatron.core.transformer.transformer_config", "TransformerConfig", ("sequence_parallel",)),
        Use("megatron.core.parallel_state", "initialize_model_parallel", ("context_parallel_size",)),
        Use("megatron.core.pipeline_parallel", "get_forward_backward_func", ("forward_only",), of_result=True),
        Use("megatron.core.optimizer", "MegatronOptimizer", attribute="zero_grad"),
        Use("megatron.core.optimizer_param_scheduler", "OptimizerParamScheduler", ("increment",), attribute="step"),
        Use("megatron.core.transformer.transformer_config", "MLATransformerConfig", ("kv_lora_rank",)),
    ],
)
def test_the_adapters_source_shows_each_kind_of_use(use: Use) -> None:
    assert any(
        (use.module, use.name, use.attribute, use.of_result) == (u.module, u.name, u.attribute, u.of_result)
        and set(use.keywords) <= set(u.keywords)
        for u in USES
    )


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (Use("megatron.core.gone", "anything"), "no module megatron.core.gone"),
        (Use("megatron.core.optimizer", "Gone"), "megatron.core.optimizer has no Gone"),
        (Use("megatron.core.optimizer", "OptimizerConfig", ("gone",)), "OptimizerConfig takes no gone"),
        (Use("megatron.core.models.gpt", "GPTModel", ("gone",)), "GPTModel takes no gone"),
        (Use("megatron.core.optimizer", "MegatronOptimizer", attribute="gone"), "MegatronOptimizer has no gone"),
        (
            Use("megatron.core.optimizer_param_scheduler", "OptimizerParamScheduler", ("gone",), attribute="step"),
            "OptimizerParamScheduler takes no gone",
        ),
        (
            Use("megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec", ("gone",)),
            "get_gpt_layer_local_spec takes no gone",
        ),
        (
            Use("megatron.core.pipeline_parallel", "get_forward_backward_func", ("gone",), of_result=True),
            "get_forward_backward_func takes no gone",
        ),
    ],
)
def test_what_a_release_lacks_is_noticed(use: Use, said: str, release: Release) -> None:
    assert missing(use, release) == said
