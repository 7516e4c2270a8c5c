"""Weights of Hugging Face folders; logits are those of `transformers`, and what is written is what was read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_models
import hf_probe
import hf_reference
import pytest
import torch
from hf_models import SPECS
from training_workers import Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

from pipeline.errors import DataError
from pipeline.training.huggingface import check_config, config_of, to_hugging_face, whole_tensor
from pipeline.training.weights_folder import WeightsFolder

LOGIT_TOLERANCE = 2e-5
"""Relative to the largest logit; fp32, two layers; the largest gap measured was 1e-6."""


def call(program: object, *arguments: object) -> str:
    path = str(program.__file__)  # type: ignore[attr-defined]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, path, *map(str, arguments)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    call(hf_reference, "make", made)
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(call(hf_probe, folder))
    return printed


@pytest.mark.parametrize("family", SPECS)
def test_logits_are_those_of_transformers(found: dict[str, Any], family: str) -> None:
    one = found[family]
    assert one["largest_difference"] < LOGIT_TOLERANCE * one["largest_logit"]


@pytest.mark.parametrize("family", SPECS)
def test_tensors_come_back_to_the_bit(found: dict[str, Any], family: str) -> None:
    assert (found[family]["differ"], found[family]["missing"]) == ([], [])


def test_transformers_reads_what_is_written(folder: Path, found: dict[str, Any]) -> None:
    assert found
    call(hf_reference, "ask", folder)
    for name in SPECS:
        assert torch.equal(torch.load(folder / f"{name}-back.pt"), torch.load(folder / f"{name}.pt"))


def train(folder: Path, name: str, place: Path, **layout: Any) -> Ended:
    experiment = tiny_experiment(steps=2)
    experiment.model = replace(SPECS[name], vocab_size=100)
    experiment.recipe.init_from = str(folder / name)
    experiment.data.kind = experiment.data.kind.mock
    plan = plan_for(experiment, **layout)
    ended = run_workers(write_run(place, experiment, plan), ranks=plan.layout.ranks)
    assert [rank.exit_code for rank in ended] == [0] * plan.layout.ranks, "\n".join(rank.errors for rank in ended)
    return ended[0]


@pytest.fixture(scope="module")
def single_rank(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(folder, "llama", tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("layout", [{"pp": 2}, {"tp": 2, "sequence_parallel": True}], ids=["pp2", "tp2"])
def test_every_layout_continues_the_same_model(
    folder: Path, tmp_path: Path, single_rank: Ended, layout: dict[str, Any]
) -> None:
    assert parity_gaps(train(folder, "llama", tmp_path, **layout), single_rank) == []


# --------------------------------------------------------------------------- without Megatron


def test_queries_keys_and_values_of_a_group_stand_together() -> None:
    spec = hf_models.spec(num_attention_heads=4, num_query_groups=2, hidden_size=8, head_dim=1)
    rows = {
        "model.layers.3.self_attn.q_proj.weight": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
        "model.layers.3.self_attn.k_proj.weight": torch.tensor([[10.0], [20.0]]),
        "model.layers.3.self_attn.v_proj.weight": torch.tensor([[100.0], [200.0]]),
    }
    name = "decoder.layers.3.self_attention.linear_qkv.weight"
    whole = whole_tensor(name, spec, rows.__getitem__)
    assert whole.flatten().tolist() == [1, 2, 10, 100, 3, 4, 20, 200]
    assert {key: value.tolist() for key, value in to_hugging_face({name: whole}, spec).items()} == {
        key: value.tolist() for key, value in rows.items()
    }


def test_a_padded_vocabulary_is_padded_and_cut() -> None:
    spec = hf_models.spec(vocab_size=3)
    rows = {"model.embed_tokens.weight": torch.ones(3, 2)}
    whole = whole_tensor("embedding.word_embeddings.weight", spec, rows.__getitem__, rows=8)
    assert whole.sum(dim=1).tolist() == [2, 2, 2, 0, 0, 0, 0, 0]
    back = to_hugging_face({"embedding.word_embeddings.weight": whole}, spec)
    assert torch.equal(back["model.embed_tokens.weight"], rows["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", 33), ("rms_norm_eps", 1e-6), ("rope_theta", 1.0), ("tie_word_embeddings", True)]
)
def test_another_models_folder_is_refused_with_the_number(key: str, value: object) -> None:
    spec = hf_models.spec()
    check_config(config_of(spec), spec, where="here")
    with pytest.raises(DataError, match=rf"here: {key} {value}, model=tiny has"):
        check_config({**config_of(spec), key: value}, spec, where="here")


def test_another_stretch_of_positions_is_refused() -> None:
    spec = SPECS["llama_tied_scaled"]
    config = config_of(spec)
    check_config(config, spec, where="here")
    for other in (None, {**config["rope_scaling"], "factor": 2.0}):
        with pytest.raises(DataError, match="here: rope_scaling"):
            check_config({**config, "rope_scaling": other}, spec, where="here")


@pytest.mark.parametrize(
    "changes", [{"linear_bias": True}, {"sinks": True}, {"learned_positions": True}, {"sliding_window": 8}]
)
def test_shapes_of_no_family_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no Llama or Qwen model has"):
        config_of(hf_models.spec(**changes))


def cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def without_files(path: Path) -> None:
    (path / "model.safetensors").unlink()


def with_a_broken_index(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text("{")


def with_an_index_of_a_missing_file(path: Path) -> None:
    weights = {"model.norm.weight": "model-1.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "model.safetensors: can't be read"),
        (without_files, "model.safetensors: can't be read"),
        (with_a_broken_index, "model.safetensors.index.json: can't be read"),
        (with_an_index_of_a_missing_file, "model-1.safetensors: model.norm.weight can't be read"),
    ],
)
def test_damaged_folders_are_named(folder: Path, tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    shutil.copytree(folder / "llama", tmp_path / "llama")
    damage(tmp_path / "llama")
    with pytest.raises(DataError) as caught, WeightsFolder(tmp_path / "llama") as weights:
        weights.read("model.norm.weight")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
