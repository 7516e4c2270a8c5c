"""Points of sweeps: Hydra's grammar, zip, conditions, and that a point equals what composing it alone gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.conf_groups import options
from pipeline.config import load
from pipeline.errors import ConfigError
from pipeline.sweep_config import Dimension, load_search, load_sweep


def choices(*overrides: str) -> list[dict[str, str]]:
    """What distinguishes each point."""
    return [point.choices for point in load_sweep(overrides).points]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("seed=1,2,3", ["1", "2", "3"]),
        ("seed=choice(4,5)", ["4", "5"]),
        ("seed=range(3)", ["0", "1", "2"]),
        ("seed=range(4,8,2)", ["4", "6"]),
        ("seed=sort(3,1,2)", ["1", "2", "3"]),
        ("optimizer.lr=1e-3,2e-3", ["0.001", "0.002"]),
        ("model=glob(guide_*)", [name for name in options("model") if name.startswith("guide_")]),
        ("model=glob([guide_1b,tiny])", ["guide_1b", "tiny"]),
        ("techniques.recompute=none,full", ["none", "full"]),
        ("data.path='a b','c,d'", ["'a b'", "'c,d'"]),
    ],
)
def test_the_grammar_is_hydras(override: str, values: list[str]) -> None:
    key = override.partition("=")[0]
    assert choices("optimizer.min_lr=0", override) == [{key: value} for value in values]


def test_every_combination_is_a_point_in_the_order_of_the_command_line() -> None:
    points = load_sweep(["seed=1,2", "nodes=1,2"]).points
    assert [list(point.choices.values()) for point in points] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert [point.number for point in points] == [1, 2, 3, 4]


def test_keys_named_together_advance_together() -> None:
    found = choices("hardware=dgx_h100,dgx_b200", "seed=1,2", "nodes=2,1", "sweep.zip=[[nodes,hardware]]")
    assert len(found) == 4
    assert {(one["hardware"], one["nodes"]) for one in found} == {("dgx_h100", "2"), ("dgx_b200", "1")}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed=1"], "no override names several values"),
        (["seed=interval(1,2)"], "a range to search in"),
        (["seed=glob(*)"], "glob"),
        (["modle=a,b"], "did you mean model"),
        (["model=tinny,tiny"], "did you mean tiny"),
        (["recipe.stps=1,2"], "did you mean steps"),
        (["seed=a,b"], "seed"),
        (["seed=1,2", "nodes=1,2,3", "sweep.zip=[[seed,nodes]]"], "as many values each"),
        (["seed=1,2", "sweep.zip=[[seed,nodes]]"], "nodes does not vary"),
        (["seed=1,2", "nodes=1,2", "sweep.zip=[[seed,nodes],[nodes,seed]]"], "two groups"),
        (["seed=1,2", 'sweep.where=["sead < 2"]'], "no such key"),
        (["seed=1,2", "sweep.over=['seed=3']"], "names one value"),
        (["seed=range(1000)", "nodes=range(1000)"], "1,000,000 points"),
        (["experiment=seminar_70b,tsubame4_fp8"], "carries a sweep of its own"),
    ],
)
def test_what_makes_no_sweep_is_said_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_condition_drops_points_and_says_which_it_was() -> None:
    loaded = load_sweep(["seed=range(4)", 'sweep.where=["seed % 2 == 0","seed < 2"]'])
    assert [point.choices["seed"] for point in loaded.points] == ["0"]
    assert [(one.number, one.reason) for one in loaded.dropped] == [
        (2, "where seed % 2 == 0"),
        (3, "where seed < 2"),
        (4, "where seed % 2 == 0"),
    ]


def test_the_sweep_an_experiment_carries_and_what_the_command_line_changes_of_it() -> None:
    whole = load_sweep(["experiment=seminar_70b"])
    assert len(whole.points) == 18
    assert {(point.experiment.hardware.name, point.experiment.nodes) for point in whole.points} == {
        ("sakura_phy_h100", 2),
        ("sakura_phy_h200", 2),
        ("sakura_phy_b200", 1),
    }
    assert len(load_sweep(["experiment=seminar_70b", "recipe.micro_batch=1"]).points) == 6
    assert len(load_sweep(["experiment=seminar_70b", "recipe.micro_batch=1,2"]).points) == 12
    assert len(load_sweep(["experiment=seminar_70b", "seed=1,2"]).points) == 36


def test_a_run_of_its_own_has_no_use_for_a_sweep() -> None:
    with pytest.raises(ConfigError, match="give -m too"):
        load(["sweep.where=[x]"])
    with pytest.raises(ConfigError, match="give -m for all of them"):
        load(["seed=1,2"])


OVERRIDES = (
    ("hardware=dgx_h100,dgx_b200",),
    ("model=llama3_8b,guide_1b,tiny",),
    ("precision=glob(*)",),
    ("optimizer.lr=1e-3,2e-4", "optimizer.min_lr=0"),
    ("seed=range(3)",),
    ("layout.tp=null,2",),
    ("layout.chunk_layers=[4,4],[2,6]",),
    ("cluster.sbatch.constraint=a,b", "cluster=slurm"),
    ("cluster.sbatch={qos: x},{nice: '1'}", "cluster=slurm"),
    ("++cluster.env.NAME='a b',c", "cluster=slurm"),
    ("techniques.recompute=none,full,selective",),
    ("data.path=null,'a,b'",),
    ("model.num_layers=4,8", "model=tiny"),
    ("experiment=demo", "recipe.steps=7,9"),
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chosen=st.lists(st.sampled_from(OVERRIDES), min_size=1, max_size=3, unique=True), order=st.randoms())
def test_a_point_equals_what_composing_it_alone_gives(chosen: list[tuple[str, ...]], order: random.Random) -> None:
    overrides = list({_key(text): text for group in chosen for text in group}.values())
    order.shuffle(overrides)
    if not any("," in text or "(" in text for text in overrides):
        return  # what varied was replaced by a single value of the same key
    for point in load_sweep(overrides).points:
        alone = [
            f"{text.partition('=')[0]}={point.choices[_key(text)]}" if _key(text) in point.choices else text
            for text in overrides
        ]
        assert point.experiment == load(alone).experiment, alone


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def test_a_folder_of_the_user_is_searched_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tiny = (Path(__file__).parents[2] / "conf" / "model" / "tiny.yaml").read_text(encoding="utf-8")
    (tmp_path / "model" / "mine.yaml").write_text(tiny.replace("name: tiny", "name: mine"), encoding="utf-8")
    loaded = load_sweep(["model=glob([mine,tiny])"], conf_dir=tmp_path)
    assert [point.experiment.model.name for point in loaded.points] == ["mine", "tiny"]


def test_what_a_search_may_choose_from() -> None:
    search = load_search(
        [
            "sweeper=optuna",
            "optimizer.lr=tag(log,interval(1e-4,1e-2))",
            "recipe.micro_batch=int(interval(1,4))",
            "seed=range(1,8,2)",
            "model=tiny,gpt_125m",
            "name=x",
        ]
    )
    assert search is not None
    assert search.fixed == ("name=x",)
    assert search.dimensions == (
        Dimension(key="optimizer.lr", low=1e-4, high=1e-2, log=True),
        Dimension(key="recipe.micro_batch", low=1, high=4, step=1),
        Dimension(key="seed", low=1, high=7, step=2),
        Dimension(key="model", values=("tiny", "gpt_125m")),
    )
    assert load_search(["seed=1,2"]) is None
    wrong = {"seed=1": "nothing varies", "sead=1,2": "no such key", "seed=1,2 sweep.where=[x]": "grid"}
    for overrides, said in wrong.items():
        with pytest.raises(ConfigError, match=said):
            load_search(["sweeper=optuna", *overrides.split()])
    with pytest.raises(ConfigError, match="no table of them"):
        load_sweep(["sweeper=optuna", "seed=1,2"])
