"""A run that is cut short anywhere and gone on with gives the curve of one that was not, to the last bit."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from training_workers import Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

from pipeline.checkpoints import checkpoint_path, checkpoints_dir, steps_on_disk
from pipeline.rundir import RunDir
from pipeline.types import Experiment

STEPS = 8
EVERY = 2


def experiment_of(*, every: int = EVERY, distributed: bool = True) -> Experiment:
    experiment = tiny_experiment(steps=STEPS)
    experiment.recipe.checkpoint_every_steps = every
    experiment.recipe.checkpoint_keep_last = STEPS
    experiment.recipe.deterministic = True
    experiment.optimizer.distributed = distributed
    return experiment


def train(folder: Path, experiment: Experiment, *, code: int = 0, **layout: int) -> tuple[RunDir, list[Ended]]:
    plan = plan_for(experiment, **layout)
    run = write_run(folder, experiment, plan)
    ended = run_workers(run, ranks=plan.layout.ranks)
    assert {rank.exit_code for rank in ended} == {code}, "\n".join(rank.errors for rank in ended)
    return run, ended


def copy_checkpoints(whole: RunDir, folder: Path, *, until: int) -> None:
    """The checkpoints up to a step, as a run that was killed after it would have left them."""
    for step in steps_on_disk(whole):
        if step <= until:
            shutil.copytree(checkpoint_path(whole, step), checkpoint_path(RunDir(folder), step))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, list[Ended]]:
    """Two ranks, tensor parallel over nothing, data parallel over both, that were never disturbed."""
    return train(tmp_path_factory.mktemp("whole"), experiment_of(), dp=2)


def losses(ended: list[Ended]) -> list[float]:
    return ended[0].metric("train/loss")


def test_resumed_is_equal_to_the_last_bit_and_a_torn_checkpoint_is_passed_over(
    whole: tuple[RunDir, list[Ended]], tmp_path: Path
) -> None:
    copy_checkpoints(whole[0], tmp_path, until=6)
    torn = next(checkpoint_path(RunDir(tmp_path), 6).glob("__0_*"))
    content = bytearray(torn.read_bytes())
    content[len(content) // 2] ^= 1
    torn.write_bytes(content)
    _, ended = train(tmp_path, experiment_of(), dp=2)
    assert losses(ended) == losses(whole[1])[4:]
    assert ended[0].metric("train/grad_norm") == whole[1][0].metric("train/grad_norm")[4:]
    assert ended[0].of_kind("resumed")[0]["step"] == 4
    (warning,) = [event["message"] for event in ended[0].of_kind("warning") if "whole" in str(event["message"])]
    assert f"step 6 is not whole and was not loaded: {torn.name} is damaged" in str(warning)


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "pp": 2}, pytest.param({"pp": 2, "dp": 2}, marks=pytest.mark.faults), {}],
    ids=["tp2-pp2", "pp2-dp2", "one-rank"],
)
def test_a_checkpoint_is_gone_on_from_in_another_layout(
    whole: tuple[RunDir, list[Ended]], tmp_path: Path, layout: dict[str, int]
) -> None:
    copy_checkpoints(whole[0], tmp_path, until=4)
    _, ended = train(tmp_path, experiment_of(every=0), **layout)
    reference = replace(whole[1][0], events=_from_step(whole[1][0], 5))
    assert parity_gaps(ended[0], reference) == []
    assert ended[0].of_kind("resumed")[0]["same_layout"] is False


@pytest.mark.faults
def test_optimizer_state_sharded_over_two_by_two_goes_to_tensor_parallel_four(tmp_path: Path) -> None:
    wide = experiment_of(every=4)
    wide.model.num_query_groups = 4
    run, reference = train(tmp_path / "before", wide, tp=2, pp=2)
    copy_checkpoints(run, tmp_path / "after", until=4)
    later = experiment_of(every=0)
    later.model.num_query_groups = 4
    _, ended = train(tmp_path / "after", later, tp=4)
    assert parity_gaps(ended[0], replace(reference[0], events=_from_step(reference[0], 5))) == []


def _from_step(rank: Ended, first: int) -> list[tuple[str, dict[str, object]]]:
    return [(kind, data) for kind, data in rank.events if kind != "metrics" or int(str(data["step"])) >= first]


def test_more_than_the_recipe_keeps_is_let_go_and_the_last_stays(tmp_path: Path) -> None:
    experiment = experiment_of(every=1)
    experiment.recipe.checkpoint_keep_last, experiment.recipe.checkpoint_keep_every_steps = 2, 3
    run, ended = train(tmp_path, experiment)
    assert steps_on_disk(run) == [8, 7, 6, 3]
    assert [event["step"] for event in ended[0].of_kind("checkpoint")] == list(range(1, 9))
    assert not list(checkpoints_dir(run).glob(".*"))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_a_random_step_the_curve_is_that_of_a_run_that_was_not(
    whole: tuple[RunDir, list[Ended]], tmp_path: Path, seed: int
) -> None:
    until = random.Random(seed).randrange(1, STEPS)
    copy_checkpoints(whole[0], tmp_path, until=until)
    _, ended = train(tmp_path, experiment_of(), dp=2)
    assert losses(ended) == losses(whole[1])[until - until % EVERY :]
