"""Overrides in, a typed Experiment out, and one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.conf_groups import groups, options, shipped_conf_dir
from pipeline.config import load
from pipeline.errors import ConfigError
from pipeline.planning.plan import make_plan
from pipeline.planning.render import plan_text
from pipeline.submission import job_script, prepare
from pipeline.types import LauncherKind


def test_demo_composes_to_typed_values() -> None:
    experiment = load(["experiment=demo", "optimizer.lr=1e-3", "nodes=null"]).experiment
    assert (experiment.name, experiment.ranks, experiment.layout.tp) == ("demo", 4, 2)
    assert experiment.optimizer.lr == 1e-3
    assert experiment.cluster.launcher is LauncherKind.local


def test_command_line_wins_over_the_experiment() -> None:
    experiment = load(["experiment=demo", "model=gpt_125m", "layout.tp=1"]).experiment
    assert (experiment.model.name, experiment.layout.tp) == ("gpt_125m", 1)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model=tinny", ["model=tinny", "did you mean tiny", "conf/model has:"]),
        ("recipe.stepz=3", ["recipe.stepz", "conf/recipe/demo.yaml", "did you mean steps", "micro_batch"]),
        ("modell=tiny", ["modell", "did you mean model"]),
        ("recipe.steps=abc", ["recipe.steps", "abc", "Integer"]),
        ("cluster.launcher=foo", ["cluster.launcher", "foo", "local, slurm"]),
        ("cluster.binding=tight", ["cluster.binding", "tight", "strict, spread, equalize, none"]),
        ("recipe.micro_batch=null", ["recipe.micro_batch", "not Optional"]),
        ("recipe.steps=1,2", ["recipe.steps", "sweep"]),
        ("a=[", ["a=[", "key=value"]),
        ("experiment=nope", ["experiment=nope", "demo"]),
        ("model.rope_base.x=1", ["model.rope_base"]),
    ],
)
def test_a_wrong_override_is_one_line_that_names_key_and_options(override: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load([override])
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in said), message


def test_a_typo_in_a_group_file_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "recipe" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("name: mine\nstepz: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(["recipe=mine"], conf_dir=tmp_path)
    assert all(part in str(caught.value) for part in ("recipe/mine", "stepz", "steps"))


def test_a_folder_of_ones_own_adds_options(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nname: mine\nseed: 7\n", encoding="utf-8")
    assert load(["experiment=mine"], conf_dir=tmp_path).experiment.seed == 7


def test_a_value_that_nobody_gave_is_named(tmp_path: Path) -> None:
    file = tmp_path / "recipe" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"recipe\.global_batch: has no value"):
        load(["recipe=mine"], conf_dir=tmp_path)


def test_free_form_sbatch_options_need_no_plus() -> None:
    experiment = load(["cluster=slurm", "cluster.sbatch.constraint=h100", "+cluster.sbatch.mail-type=END"]).experiment
    assert experiment.cluster.sbatch == {"constraint": "h100", "mail-type": "END"}


@pytest.mark.parametrize(
    ("overrides", "named"),
    [([], False), (["cluster=local"], True), (["experiment=demo"], False), (["experiment=demo", "cluster=dev"], True)],
)
def test_a_chosen_cluster_is_told_from_the_default(overrides: list[str], named: bool) -> None:
    assert ("cluster" in load(overrides).named_groups) is named


def test_an_experiment_can_choose_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\ndefaults:\n  - override /cluster: dev\nname: mine\n", encoding="utf-8")
    assert "cluster" in load(["experiment=mine"], conf_dir=tmp_path).named_groups


ALL_OPTIONS = [(group, option) for group in groups() if group != "sweeper" for option in options(group)]


@pytest.mark.parametrize(("group", "option"), ALL_OPTIONS)
def test_every_shipped_option_composes(group: str, option: str) -> None:
    experiment = load([f"{group}={option}"]).experiment
    chosen = experiment if group == "experiment" else getattr(experiment, group)
    assert chosen.name == option


@pytest.mark.parametrize("name", options("experiment"))
def test_every_shipped_experiment_plans_and_renders(name: str) -> None:
    experiment = load([f"experiment={name}", "cluster=slurm"]).experiment
    plan = make_plan(experiment)
    submission = prepare(experiment, plan, run_dir="/runs/x", python="/env/bin/python")
    text = plan_text(experiment, plan, submission, job_script(submission))
    assert name in text
    assert "#SBATCH --nodes=" in text


@pytest.mark.parametrize("name", options("cluster"))
def test_every_shipped_cluster_renders(name: str) -> None:
    experiment = load(["experiment=demo", f"cluster={name}"]).experiment
    submission = prepare(experiment, make_plan(experiment), run_dir="/runs/x", python="/env/bin/python")
    assert job_script(submission).startswith("#!/bin/bash")


def test_every_file_of_conf_is_an_option_or_part_of_one() -> None:
    root = shipped_conf_dir()
    parts = [path for path in root.rglob("*.yaml") if len(path.relative_to(root).parts) > 2]
    suites = options("suite")  # each composes in tests/unit/analysis/test_nights.py
    sweepers = options("sweeper")  # of sweeps only: tests/unit/test_sweep_config.py
    assert len(list(root.rglob("*.yaml"))) == 1 + len(ALL_OPTIONS) + len(parts) + len(suites) + len(sweepers)
    for part in parts:
        users = [path for path in part.parents[1].glob("*.yaml") if part.stem in path.read_text(encoding="utf-8")]
        assert users, f"no option uses {part.relative_to(root)}"
