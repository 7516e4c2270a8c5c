"""What MLflow shows of a run besides its curves."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pipeline.rundir import AttemptDir, RunDir, write_json
from pipeline.tracking.feed import Facts, NodeBinding
from pipeline.tracking.points import Curves
from pipeline.tracking.provenance import Provenance
from pipeline.tracking.view import (
    MAX_PARAM_LENGTH,
    MAX_PARAMS,
    MAX_TAG_LENGTH,
    Ending,
    View,
    split_long,
)
from pipeline.types import (
    End,
    Experiment,
    Handle,
    LauncherKind,
    MlaSpec,
    MoeSpec,
    Plan,
    Recompute,
    RunState,
    Techniques,
)


@pytest.fixture
def view(experiment: Experiment, plan: Plan, provenance: Provenance) -> View:
    return View("r1", experiment, plan, provenance)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    attempt = RunDir(tmp_path).attempt(2)
    write_json(
        attempt.handle_file,
        Handle(run_id="r1", attempt=2, launcher=LauncherKind.slurm, job_id="77", submitted_at=1.0),
    )
    return attempt


def end(state: RunState, message: str = "") -> End:
    return End(state=state, message=message, first=None, time=1.0)


def test_parameters_are_few_readable_and_say_what_was_planned(view: View) -> None:
    params = view.params()
    assert params["model"] == "tiny"
    assert params["hardware"] == "node-cpu"
    assert params["optimizer.lr"] == "0.001"
    assert params["layout.dp"] == "2"
    assert (params["nodes"], params["ranks"], params["seed"]) == ("1", "2", "1234")
    assert len(params) <= MAX_PARAMS
    assert not any(key.startswith("techniques.") for key in params)
    assert not any(key.startswith(("cluster.", "tracking", "run_root", "hardware.")) for key in params)


def test_options_mostly_left_alone_show_when_they_are_used(view: View) -> None:
    view.experiment.techniques.recompute = Recompute.full
    view.experiment.model.qk_norm = True
    params = view.params()
    assert params["techniques.recompute"] == "full"
    assert params["model.qk_norm"] == "true"


def test_parameters_beyond_the_limit_are_left_out_and_counted(view: View, attempt: AttemptDir) -> None:
    for option in fields(Techniques):
        setattr(view.experiment.techniques, option.name, "changed")
    view.experiment.model.moe = MoeSpec(num_experts=8, top_k=2, expert_ffn_hidden_size=64)
    view.experiment.model.mla = MlaSpec(kv_lora_rank=8, qk_nope_dim=8, qk_rope_dim=8, v_dim=8)
    tags = view.tags(attempt, Ending(2, None, started=True), Facts(), Curves())
    assert len(view.params()) == MAX_PARAMS
    assert int(tags["himori.params_left_out"]) > 0
    assert {"seed", "model", "optimizer.lr", "recipe.steps", "techniques.sharding"} <= view.params().keys()


def test_a_value_too_long_for_a_parameter_goes_to_a_file() -> None:
    params, files = split_long({"data.path": "x" * (MAX_PARAM_LENGTH + 1), "fits": "y" * MAX_PARAM_LENGTH})
    assert files == {"params/data.path.txt": "x" * (MAX_PARAM_LENGTH + 1)}
    assert params["data.path"].startswith("6001 characters, sha256 ")
    assert params["fits"] == "y" * MAX_PARAM_LENGTH


def test_tags_name_job_code_and_versions_the_workers_own_first(view: View, attempt: AttemptDir) -> None:
    facts = Facts(environment={"torch": "2.9", "device": "GPU A", "secret": "canary"}, nodes={2: {"n01", "n02"}})
    tags = view.tags(attempt, Ending(2, None, started=True), facts, Curves())
    expected = {
        "himori.run_id": "r1",
        "himori.job_id": "77",
        "himori.attempt": "2",
        "himori.nodes": "n[01-02]",
        "himori.end": "RUNNING",
        "himori.end_message": "",
        "himori.git.dirty": "true",
        "himori.torch": "2.9",
        "himori.device": "GPU A",
        "himori.megatron_core": "0.16.1",
        "himori.python": "3.11.9",
        "himori.version": "0.1.0",
        "himori.hardware": "node-cpu",
        "himori.model": "tiny",
        "himori.precision": "single",
        "mlflow.source.git.commit": "c0ffee",
    }
    assert tags.items() >= expected.items()
    assert "canary" not in str(tags)
    assert not {"himori.repeats_differ", "train.first_nonfinite_step", "himori.damaged_lines"} & tags.keys()


def test_what_is_odd_about_the_curves_is_a_tag(view: View, attempt: AttemptDir) -> None:
    curves = Curves(repeats_differ=3, first_nonfinite_step=0, quarantined={"key": "str is not a number"})
    tags = view.tags(attempt, Ending(2, None, started=True), Facts(damaged_lines=1), curves)
    assert tags["himori.repeats_differ"] == "3"
    assert tags["train.first_nonfinite_step"] == "0"
    assert tags["himori.damaged_lines"] == "1"
    assert tags["himori.quarantined"] == "key: str is not a number"


def test_a_message_no_database_takes_is_made_one(view: View, attempt: AttemptDir) -> None:
    ending = Ending(2, end(RunState.failed, "nul \0 and byte \udcff"), started=True)
    tags = view.tags(attempt, ending, Facts(), Curves())
    assert tags["himori.end_message"] == "nul \N{REPLACEMENT CHARACTER} and byte ?"


def test_a_tag_too_long_says_that_it_was_cut(view: View, attempt: AttemptDir) -> None:
    ending = Ending(2, end(RunState.failed, "x" * 9000), started=True)
    message = view.tags(attempt, ending, Facts(), Curves())["himori.end_message"]
    assert len(message) == MAX_TAG_LENGTH
    assert message.endswith("... (9000 characters, the rest is in the run directory)")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (RunState.finished, "FINISHED"),
        (RunState.failed, "FAILED"),
        (RunState.timeout, "FAILED"),
        (RunState.unknown, "FAILED"),
        (RunState.cancelled, "KILLED"),
    ],
)
def test_each_end_has_a_status(state: RunState, status: str) -> None:
    assert Ending(1, end(state), started=True).status == status


def test_a_run_without_an_end_runs_or_waits() -> None:
    assert Ending(1, None, started=True).status == "RUNNING"
    assert Ending(2, None, started=False).status == "SCHEDULED"


def test_the_note_begins_with_the_verdict_and_keeps_its_table_whole(view: View) -> None:
    note = view.note(Ending(1, end(RunState.failed, "rank 3 | died\nof it"), started=True))
    assert note.splitlines()[0] == r"**FAILED**: rank 3 \| died of it"
    assert "| model | tiny, 123,456 parameters |" in note


def test_drift_names_each_difference_once_with_its_nodes(view: View, attempt: AttemptDir) -> None:
    cores = "cores: expected 112, found 56"
    drifts = {"n1": (cores,), "n2": (cores, "GPUs: expected 8, found 7"), "n3": ()}
    bindings = {node: NodeBinding(frozenset(), is_red=False, drift=drift) for node, drift in drifts.items()}
    tags = view.tags(attempt, Ending(2, None, started=True), Facts(bindings={2: bindings}), Curves())
    assert tags["himori.drift"] == f"{cores} (n[1-2]); GPUs: expected 8, found 7 (n2)"


@pytest.mark.parametrize(
    ("bindings", "tag"),
    [
        ({}, None),
        ({1: {"n1": NodeBinding(frozenset({"EXACT"}), is_red=True)}}, None),
        ({2: {"n1": NodeBinding(frozenset({"EXACT"}), is_red=False)}}, "EXACT"),
        (
            {
                2: {
                    "n1": NodeBinding(frozenset({"OVERSUBSCRIBED", "FALLBACK"}), is_red=False),
                    "n2": NodeBinding(frozenset({"EXACT"}), is_red=False),
                }
            },
            "EXACT,FALLBACK,OVERSUBSCRIBED",
        ),
        (
            {2: {"n1": NodeBinding(frozenset({"EXACT"}), is_red=False), "n2": NodeBinding(frozenset(), is_red=True)}},
            "RED",
        ),
    ],
    ids=["none", "earlier-attempt", "exact", "of-all-nodes", "red"],
)
def test_the_binding_of_the_newest_attempt_is_a_tag(
    view: View, attempt: AttemptDir, bindings: dict[int, dict[str, NodeBinding]], tag: str | None
) -> None:
    tags = view.tags(attempt, Ending(2, None, started=True), Facts(bindings=bindings), Curves())
    assert tags.get("himori.binding") == tag
