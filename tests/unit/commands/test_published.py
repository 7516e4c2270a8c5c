"""Figures of others stand beside the points they are about, with what their set-up has that ours doesn't."""

from __future__ import annotations

import json

import pytest

from pipeline.__main__ import main
from pipeline.errors import ConfigError
from pipeline.sweep_config import load_sweep

LADDER = ["experiment=blackwell_guide", "precision=bf16", "recipe.sequence_length=2048", "recipe.micro_batch=16"]


def test_the_guides_figures_stand_beside_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", *LADDER, "--json", "--sort=+tokens_per_s"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = {(row["model"], row["techniques.recompute"]): row["published"] for row in document["points"]}
    assert "51,000 tokens/s" in said["guide_1b", "full"]
    assert said["guide_1b", "none"] is None
    assert said["guide_14b", "none"] == "needs recompute"
    rates = [row["tokens_per_s"] for row in document["points"]]
    assert rates == sorted(rates)
    assert all(any("Megatron" in difference for difference in one["differs"]) for one in document["published"])
    (dropped,) = document["left_out"]
    assert "least change that fits" in dropped["reason"]


def test_people_read_where_a_figure_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", *LADDER, "model=guide_1b,guide_3b"]) == 0
    shown = capsys.readouterr().out
    assert "published about 51,000 tokens/s" in shown
    assert "not the same: torch FSDP" in shown


def test_a_condition_that_means_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no\.such"):
        load_sweep([*LADDER, "++sweep.published=[{where: ['no.such == 1'], says: x, source: y}]"])
