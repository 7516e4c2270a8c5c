"""Why two runs differ, how far one is from what was published, and the job that would be fair."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from made_runs import B200, H100, made, repeats, row, spread

from pipeline.analysis.causes import causes
from pipeline.analysis.comparison import compare
from pipeline.analysis.diff import NOT_SET, difference
from pipeline.analysis.facts import NodeFacts
from pipeline.analysis.gap import distance, gap
from pipeline.analysis.selection import shipped_rows
from pipeline.commands.fair import fair_job, overrides_of
from pipeline.commands.origins import origin_of
from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.errors import UserError


def test_every_key_that_differs_is_named_with_who_set_it(tmp_path: Path) -> None:
    """From the option of its group, or by hand."""
    a = made(tmp_path, H100)
    b = made(tmp_path, [*H100, "techniques.recompute=full", "precision=fp8"])
    changes = {one.what: one for one in difference(a, b, origin_of).config}
    recompute = changes["techniques.recompute"]
    assert (recompute.a, recompute.b) == ("none", "full")
    assert (recompute.origin_a, recompute.origin_b) == ("default", "override")
    assert changes["precision.name"].origin_b == "precision=fp8"
    assert changes["precision.low_precision"].a == NOT_SET
    assert not difference(a, a, origin_of).config
    assert not difference(a, a, origin_of).causes


@pytest.mark.parametrize(
    ("change", "first", "slower"),
    [
        (["hardware=dgx_b200"], "gpu", False),
        (["techniques.recompute=full"], "techniques", True),
        (["precision=fp8"], "precision", False),
        (["layout.tp=8"], "layout", True),
        (["recipe.sequence_length=8192"], "sequence_length", True),
        (["model=llama3_2_3b"], "model", False),
    ],
)
def test_the_cause_of_a_gap_is_ranked_first_with_what_it_alone_makes(
    change: list[str], first: str, slower: bool, tmp_path: Path
) -> None:
    """The step-time model puts a factor on each change."""
    a, b = made(tmp_path, H100), made(tmp_path, [*H100, *change])
    found = causes(a, b)
    assert found[0].name == first
    assert found[0].factor is not None
    assert (found[0].factor < 1) == slower


def test_several_causes_stand_by_their_weight(tmp_path: Path) -> None:
    """A misplaced rank and another node are named with their evidence."""
    a = made(tmp_path, H100)
    b = made(tmp_path, [*H100, "techniques.recompute=full"], node="n9")
    b = dataclasses.replace(b, bindings=(NodeFacts(node="n9", flags=("DEGRADED",), red=(3,)),))
    names = [one.name for one in causes(a, b)]
    assert names[0] == "techniques"
    assert {"placement of B", "other nodes"} <= set(names)
    weights = [one.weight for one in causes(a, b)]
    assert weights == sorted(weights, reverse=True)


def test_the_nearest_published_result_is_the_one_that_differs_least(tmp_path: Path) -> None:
    """Its own row is at distance 0; a run of ours finds the row of its GPU and model."""
    rows = shipped_rows()
    for one in rows[:5]:
        assert sum(distance(one, one).values()) == 0
    overrides = ["hardware=dgx_h100", "model=llama3_8b", "precision=bf16", "recipe.sequence_length=8192",
                 "recipe.global_batch=128", "recipe.micro_batch=1", "layout.cp=2", "layout.tp=2"]  # fmt: skip
    run = made(tmp_path, overrides, step_s=128 * 8192 / 8 / 8000)
    found = gap(run, rows)
    assert found.nearest.name == "llama3-8b-bf16-h100-x8-dgxc"
    assert found.distance == 0
    assert found.rate_ratio == pytest.approx(8000 / 10253.5)
    assert {"clocks", "gradients", "layout"} <= {one.name for one in found.checks}
    with pytest.raises(UserError, match="no rows"):
        gap(run, [])


@pytest.mark.parametrize("experiment", options("experiment"))
def test_an_experiment_is_told_in_overrides_that_compose_to_it(experiment: str) -> None:
    """Whatever is in it."""
    wanted = load([f"experiment={experiment}", "layout.tp=2", "seed=7", "+cluster.sbatch.comment=a b"]).experiment
    assert load(overrides_of(wanted)).experiment == wanted


def test_the_fair_job_composes_to_one_arms_hardware_with_the_others_recipe(tmp_path: Path) -> None:
    """Its line can be typed as it stands, and then only the hardware differs."""
    a = [made(tmp_path, [*H100, "optimizer.lr=1e-3"])]
    b = [made(tmp_path, [*B200, "recipe.sequence_length=8192"])]
    job = fair_job(compare(a, b))
    assert job is not None
    assert job.fits
    words = shlex.split(job.command)
    assert words[:2] == ["himori", "submit"]
    composed = load(words[2:]).experiment
    assert b[0].experiment is not None
    assert composed.hardware.name == "dgx_h100"
    assert composed.recipe == b[0].experiment.recipe
    assert composed.optimizer == b[0].experiment.optimizer
    assert composed.ranks == b[0].gpus


def test_a_fair_job_of_published_rows_is_made_of_what_they_state() -> None:
    """As far as `conf/` has it; a platform it doesn't have makes none."""
    a = repeats("a", spread(1000, 0.01), platform="dgx_h100", sequence_length=8192)
    b = repeats("b", spread(2000, 0.01), gpu="B200-SXM-180GB", platform="dgx_b200")
    job = fair_job(compare(a, b))
    assert job is not None
    assert "hardware=dgx_h100" in job.command
    assert "recipe.sequence_length=4096" in job.command
    assert load(shlex.split(job.command)[2:]).experiment.model.name == "llama3_8b"
    assert fair_job(compare([row("a", platform="x")], [row("b", gpu="GB200", platform="y", task="lora")])) is None
