"""Every key that workers read changes the model, the optimizer, the schedule or the data they build."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import build_probe
import data_probe
import pytest
from training_workers import plan_for, tiny_experiment

from pipeline.errors import PlanRefused
from pipeline.model_math import parameters
from pipeline.training.support import GPU_ONLY, OBEYED, refuse_unsupported
from pipeline.types import (
    DataSpec,
    DType,
    Layout,
    LayoutRequest,
    ModelSpec,
    MoeSpec,
    MuonSpec,
    OptimizerSpec,
    Precision,
    Recipe,
    Techniques,
)

GROUPS = {
    "model": ModelSpec,
    "precision": Precision,
    "optimizer": OptimizerSpec,
    "recipe": Recipe,
    "data": DataSpec,
    "layout": LayoutRequest,
    "techniques": Techniques,
}
LABELS = {"name"}

Prints = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def prints() -> Prints:
    program = Path(build_probe.__file__)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found: Prints = json.loads(done.stdout)
    return found


def keys_of(groups: dict[str, type]) -> list[str]:
    return [
        f"{group}.{field.name}" for group, kind in groups.items() for field in fields(kind) if field.name not in LABELS
    ]


def obeyed(key: str) -> bool:
    group, _, name = key.partition(".")
    return name in OBEYED[group]


ELSEWHERE = {
    # Held to agree with the biases of all other layers; of no effect alone.
    "model.output_bias",
    # Tests of weights from elsewhere, of checkpoints and of the loop.
    "recipe.init_from",
    "recipe.lora",
    "recipe.checkpoint_every_steps",
    "recipe.checkpoint_keep_last",
    "recipe.checkpoint_keep_every_steps",
    "recipe.deterministic",
    # Tests on a GPU.
    "recipe.layout_invariant_weights",
    "techniques.expandable_segments",
}
"""Keys whose effect this module can't show."""


def test_every_obeyed_key_has_a_case() -> None:
    cases = {*build_probe.VALUES, *build_probe.LAYOUTS, *data_probe.CASES, *build_probe.CONFIGURED, *ELSEWHERE}
    nested = {key for key in build_probe.CONFIGURED if key.count(".") > 1}
    assert sorted(cases - nested) == sorted([*filter(obeyed, keys_of(GROUPS)), "seed", "layout.none"])


@pytest.mark.parametrize(("key", "kind"), [("model.moe", MoeSpec), ("optimizer.muon", MuonSpec)], ids=["moe", "muon"])
def test_every_key_within_a_key_has_a_case(key: str, kind: type) -> None:
    cases = {case for case in build_probe.CONFIGURED if case.startswith(f"{key}.")}
    assert cases == {f"{key}.{field.name}" for field in fields(kind)}


@pytest.mark.parametrize("key", build_probe.CONFIGURED)
def test_a_key_changes_what_megatron_is_configured_with(key: str, prints: Prints) -> None:
    assert prints[key]["with"] != prints[key]["without"]


@pytest.mark.parametrize("key", [key for key in keys_of({**GROUPS, "layout": Layout}) if not obeyed(key)])
def test_a_key_that_is_not_obeyed_is_refused_off_its_default(key: str) -> None:
    experiment = tiny_experiment()
    layout = plan_for(experiment).layout
    if key.startswith("layout."):
        layout = replace(layout, **{key.removeprefix("layout."): "something"})
    else:
        build_probe.changed(experiment, key, "something")
    with pytest.raises(PlanRefused, match=f"this version: {key}=something"):
        refuse_unsupported(experiment, layout)


@pytest.mark.parametrize(("key", "value"), [("precision.dtype", DType.fp16)])
def test_a_value_that_is_not_obeyed_is_refused(key: str, value: object) -> None:
    experiment = build_probe.changed(tiny_experiment(), key, value)
    with pytest.raises(PlanRefused, match=f"this version: {key}="):
        refuse_unsupported(experiment, plan_for(experiment).layout)


@pytest.mark.parametrize("key", [f"{group}.{name}" for group, names in GPU_ONLY.items() for name in sorted(names)])
def test_what_needs_a_gpu_is_refused_on_a_cpu(key: str) -> None:
    experiment = build_probe.changed(tiny_experiment(), key, "something")
    with pytest.raises(PlanRefused, match=f"on a CPU: {key}=something"):
        refuse_unsupported(experiment, plan_for(experiment).layout)


def test_a_bias_left_out_of_one_projection_is_refused() -> None:
    experiment = tiny_experiment()
    experiment.model.linear_bias, experiment.model.qkv_bias = True, False
    with pytest.raises(PlanRefused, match=r"model.qkv_bias=False \(allowed: None, True\)"):
        refuse_unsupported(experiment, plan_for(experiment).layout)


def test_what_is_built_is_not_refused() -> None:
    for key in build_probe.VALUES:
        experiment = build_probe.experiment_of(key, steps=1)
        refuse_unsupported(experiment, plan_for(experiment).layout)


@pytest.mark.parametrize("key", [key for key in build_probe.VALUES if key.startswith("model.")])
def test_the_planner_counts_the_parameters_that_are_built(key: str, prints: Prints) -> None:
    experiment = build_probe.experiment_of(key, steps=1)
    assert prints[key]["total"] == parameters(experiment.model)


def test_the_same_experiment_builds_the_same(prints: Prints) -> None:
    assert prints["baseline again"] == prints["baseline"]


@pytest.mark.parametrize("key", build_probe.VALUES)
def test_a_key_changes_what_is_built(key: str, prints: Prints) -> None:
    assert prints[key] != prints[build_probe.baseline_of(key)]


@pytest.mark.parametrize("key", [key for key in build_probe.LAYOUTS if key != "layout.none"])
def test_a_layout_changes_the_part_a_rank_builds(key: str, prints: Prints) -> None:
    others = [prints[other] for other in build_probe.LAYOUTS if other != key]
    assert prints[key] not in others


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("model.num_layers", "parameters"),
        ("model.num_query_groups", "parameters"),
        ("model.head_dim", "parameters"),
        ("model.normalization", "parameters"),
        ("model.activation", "parameters"),
        ("model.tied_embeddings", "parameters"),
        ("model.vocab_size", "parameters"),
        ("model.rope_base", "losses"),
        ("model.qk_norm", "parameters"),
        ("model.linear_bias", "parameters"),
        ("model.qkv_bias", "parameters"),
        ("model.learned_positions", "parameters"),
        ("techniques.cross_entropy", "fused_loss"),
        ("precision.dtype", "parameters"),
        ("optimizer.lr", "rates"),
        ("optimizer.min_lr", "rates"),
        ("optimizer.warmup_steps", "rates"),
        ("optimizer.decay", "rates"),
        ("optimizer.weight_decay", "losses"),
        ("optimizer.beta1", "losses"),
        ("optimizer.beta2", "losses"),
        ("optimizer.eps", "losses"),
        ("optimizer.clip_grad", "losses"),
        ("optimizer.distributed", "optimizer"),
        ("recipe.steps", "rates"),
        ("recipe.sequence_length", "batch"),
        ("recipe.micro_batch", "batch"),
        ("recipe.global_batch", "batch"),
        ("data.path", "losses"),
        ("seed", "losses"),
    ],
)
def test_a_key_changes_the_part_it_is_about(key: str, part: str, prints: Prints) -> None:
    assert prints[key][part] != prints[build_probe.baseline_of(key)][part]


def test_sharding_the_optimizer_is_no_other_training(prints: Prints) -> None:
    for part in ("losses", "norms", "rates"):
        assert prints["optimizer.distributed"][part] == pytest.approx(prints["baseline"][part], rel=1e-6)


def test_only_a_bf16_run_has_the_fused_loss_that_rounds_to_bf16(prints: Prints) -> None:
    assert not prints["baseline"]["fused_loss"]
    assert prints["precision.dtype"]["fused_loss"]


def test_the_schedule_warms_up_from_zero_and_falls(prints: Prints) -> None:
    assert prints["baseline"]["rates"] == pytest.approx([0.0, 2e-3, 4e-3, 3.1e-3, 1.3e-3])
    assert prints["optimizer.decay"]["rates"] == pytest.approx([0.0, 2e-3, 4e-3, 2.8e-3, 1.6e-3])


def test_a_stable_phase_lies_between_warm_up_and_decay(prints: Prints) -> None:
    assert prints["optimizer.decay_shape left out"]["rates"] == pytest.approx([0.0, 2e-3, 4e-3, 2.8e-3, 1.6e-3])
    assert prints["optimizer.decay_steps left out"]["rates"] == pytest.approx([0.0, 2e-3, 4e-3, 4e-3, 4e-3])
