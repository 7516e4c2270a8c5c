"""Facts of a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import H100, PHASE_S, made, make_run, watch_gpus

from pipeline.analysis.comparison import compare
from pipeline.analysis.facts import recipe_hash
from pipeline.analysis.report import as_html, runs_report
from pipeline.analysis.roles import BLOCKS, VARIABLES, Estimand
from pipeline.analysis.runs import read_run
from pipeline.analysis.selection import select_runs
from pipeline.errors import RunDirError, UserError
from pipeline.rundir import RunDir, write_json
from pipeline.sweepdir import PointOf
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.types import RunState


def test_a_run_has_its_variables_and_its_measurements(tmp_path: Path) -> None:
    """Warm-up is left out of the rate, and nothing is taken for granted that was not written down."""
    run = made(tmp_path, H100, step_s=2.0)
    assert run.step_s == 2.0
    assert len(run.steady_step_s) == 70
    assert run.tokens_per_s_per_gpu == pytest.approx(4096 * 64 / 2.0 / 8)
    assert run.startup_s == pytest.approx(PHASE_S + 2.0)
    assert run.factors["gpu"] == "H100-SXM5-80GB"
    assert run.factors["layout"] == "tp4 pp1 dp2"
    assert run.factors["software"] == "torch 2.9, megatron_core 0.16.1"
    assert run.peak_memory_gib is None
    assert run.config["recipe.sequence_length"] == 4096
    assert set(run.factors) <= {one.key for one in VARIABLES}


def test_each_attempt_warms_up_anew_and_repeats_count_once(tmp_path: Path) -> None:
    """A second attempt that starts at step 41 of 80: its first ten steps are slow, its repeats not curves."""
    directory = make_run(tmp_path, H100, steps=60, state=None)
    with JournalWriter(directory.attempt(2).journal("n2")) as journal:
        for number in range(41, 81):
            seconds = 9.0 if number <= 50 else 1.0
            values = {"train/loss": 1.0, "throughput/step_time_s": seconds}
            journal.append(Event("metrics", 5000.0 + number, "n2", 0, {"step": number, "values": values}))
    run = read_run(directory)
    assert set(run.steady_step_s) == {1.0}
    assert len(run.steady_step_s) == 50 + 30
    loss = run.curves["train/loss"]
    assert loss.steps == tuple(range(1, 81))
    assert loss.values[40] == pytest.approx(4.0 * 41**-0.2)
    assert run.nodes == ("n1", "n2")
    assert run.state == "RUNNING"


def test_seeds_share_a_recipe_and_anything_else_that_must_match_does_not(tmp_path: Path) -> None:
    """The recipe's hash is over what must match."""
    first, second = (made(tmp_path, H100, seed=seed) for seed in (1, 2))
    other = made(tmp_path, [*H100, "optimizer.lr=1e-3"])
    assert recipe_hash(first, BLOCKS) == recipe_hash(second, BLOCKS) != recipe_hash(other, BLOCKS)


def test_selectors_of_runs(tmp_path: Path) -> None:
    """By id, by values, by recipe; unknown keys and values that nothing has are answered."""
    runs = [made(tmp_path, H100, seed=seed, name="base") for seed in (1, 2)]
    lone = made(tmp_path, H100, seed=3, name="lone", state=RunState.failed)
    assert [one.name for one in select_runs(f"{runs[0].name},{lone.name}", tmp_path)] == [runs[0].name, lone.name]
    assert len(select_runs("name=base", tmp_path)) == 2
    assert len(select_runs("name=*,seed=3", tmp_path)) == 1
    assert len(select_runs("hardware=dgx_h100", tmp_path)) == 3
    assert len(select_runs("recipe.global_batch=64,state=FINISHED", tmp_path)) == 2
    assert len(select_runs(f"recipe={recipe_hash(lone, BLOCKS)}", tmp_path)) == 3
    point = PointOf(sweep_id="sweep-1", sweep_name="lr", number=1, digest="d", choices={})
    write_json(RunDir(Path(lone.source)).point_file, point)
    assert [one.name for one in select_runs("sweep=lr", tmp_path)] == [lone.name]
    assert [one.name for one in select_runs("sweep=sweep-*,seed=3", tmp_path)] == [lone.name]
    with pytest.raises(UserError, match="no key of the runs' configuration"):
        select_runs("colour=red", tmp_path)
    with pytest.raises(UserError, match="no run of"):
        select_runs("seed=9", tmp_path)


def test_a_damaged_run_is_named_and_hides_no_other(tmp_path: Path) -> None:
    """By itself it is an error with its file, among others it is passed over."""
    good, bad = make_run(tmp_path, H100), make_run(tmp_path, H100)
    bad.plan_file.write_text("{", encoding="utf-8")
    with pytest.raises(RunDirError, match=r"plan\.json"):
        read_run(bad)
    assert [one.name for one in select_runs("name=made", tmp_path)] == [good.run_id]
    with pytest.raises(RunDirError, match="not a run"):
        read_run(RunDir(tmp_path / "nothing"))


def test_energy_and_throttling_come_from_the_samples(tmp_path: Path) -> None:
    """Joules of the boards over tokens of the steady steps; heat spoils a run, a power cap doesn't."""
    runs = [make_run(tmp_path, H100) for _ in range(3)]
    for directory, reasons in zip(runs, (0, 0x04, 0x20), strict=True):
        watch_gpus(directory, reasons=reasons)
    plain, capped, hot = (read_run(directory) for directory in runs)
    assert plain.telemetry
    assert plain.energy_j_per_token == pytest.approx(2 * 700.0 / (64 * 4096))
    assert plain.factors["power_limit_watts"] == 700
    assert plain.throttled == capped.throttled == ""
    assert {band.cause for band in capped.bands} == {"power"}
    assert "thermal on n1 01 for 100%" in hot.throttled
    answer = compare([plain], [capped]).answer(Estimand.energy)
    assert answer.ratio is not None
    assert answer.ratio.value == pytest.approx(1.0)
    with pytest.raises(UserError, match="throttled: thermal"):
        compare([plain], [hot])
    page = as_html(runs_report([plain, capped], title="x"))
    assert 'id="power"' in page
    assert 'id="temperature"' in page


def test_peaks_come_from_every_rank(tmp_path: Path) -> None:
    """The largest of what the ranks reported."""
    directory = make_run(tmp_path, H100)
    with JournalWriter(directory.attempt(1).journal("n2")) as journal:
        for rank, peak in ((8, 61.5), (9, 63.25)):
            data: dict[str, object] = {"step": 2, "allocated_gib": peak, "reserved_gib": peak + 2}
            journal.append(Event("memory", 1010.0, "n2", rank, data))
    assert read_run(directory).peak_memory_gib == 63.25


def test_bindings_come_from_the_certificates(tmp_path: Path) -> None:
    """Flags, ranks that are not where they were put, and every rank's place."""
    directory = make_run(tmp_path, H100)
    place = {"rank": 3, "gpu": "0000:1b:00.0", "home": 1, "cpus": [4, 5, 6], "nics": ["mlx5_0"],
             "memory": {"mode": "preferred", "nodes": [1]}}  # fmt: skip
    data = {"node": "n1", "flags": ["DEGRADED"], "red": [3], "warnings": [], "ranks": [{"planned": place}]}
    path = directory.attempt(1).binding("n1")
    path.parent.mkdir()
    path.write_text(json.dumps({"schema": 1, "data": data}), encoding="utf-8")
    (node,) = read_run(directory).bindings
    assert node.red == (3,)
    assert (node.ranks[0].cpus, node.ranks[0].memory, node.ranks[0].nics) == ("4-6", "preferred 1", "mlx5_0")
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RunDirError, match="not a binding certificate"):
        read_run(directory)
