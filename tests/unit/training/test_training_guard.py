"""Numbers that can't be right: found, named with their batch, and told from a fault of the machine."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from training_workers import Ended, plan_for, run_workers, tiny_experiment, write_run

from pipeline.training.spikes import Spikes
from pipeline.types import Guard, SpikeAction, WorkerCode

FLAKY = Path(__file__).with_name("flaky_worker.py")


def train(
    folder: Path, guard: Guard, *, program: tuple[str, ...] | None = None, lr: float = 4e-3, dp: int = 1
) -> Ended:
    experiment = tiny_experiment(steps=6)
    experiment.guard = guard
    experiment.optimizer.lr, experiment.optimizer.warmup_steps = lr, 0
    run = write_run(folder, experiment, plan_for(experiment, dp=dp))
    ended = run_workers(run, ranks=dp, **({"program": program} if program else {}))
    return ended[0]


def test_a_batch_that_blows_up_is_named_and_blamed_on_the_numbers(tmp_path: Path) -> None:
    ended = train(tmp_path, Guard(rerun=True), lr=1e30)
    assert ended.exit_code == WorkerCode.numerics
    (anomaly,) = ended.of_kind("anomaly")
    assert "so it was when the step was run again" in str(anomaly["what"])
    found = anomaly["micro_batches"]
    assert found
    assert all(len(culprit["samples"]) == 2 for culprit in found)
    assert "samples " in ended.errors


def test_a_step_that_is_right_the_second_time_is_blamed_on_the_machine(tmp_path: Path) -> None:
    ended = train(tmp_path, Guard(rerun=True), program=("-P", str(FLAKY)))
    assert ended.exit_code == WorkerCode.hardware
    assert "suspected hardware fault" in ended.errors
    assert "rank 0 computed something else" in ended.errors


def test_data_of_each_step_has_a_checksum_that_no_layout_changes(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", Guard(data_checksum=True))
    two = train(tmp_path / "two", Guard(data_checksum=True), dp=2)
    sums = [event["checksum"] for event in alone.of_kind("data_checksum")]
    assert len(set(sums)) == 6
    assert [event["checksum"] for event in two.of_kind("data_checksum")] == sums


def spikes_of(losses: list[float], *, deviations: float = 10.0) -> list[int]:
    watch = Spikes(deviations)
    return [step for step, loss in enumerate(losses) if watch.is_spike(loss)]


def test_a_jump_is_a_spike_and_a_slow_rise_is_none() -> None:
    calm = [3.0 + 0.01 * math.sin(step) for step in range(40)]
    assert spikes_of([*calm, 6.0, *calm]) == [40]
    assert spikes_of([3.0 + 0.01 * step for step in range(100)]) == []
    assert spikes_of([3.0] * 10 + [9.0]) == [], "too few losses to know what is usual"


@given(st.lists(st.floats(2.0, 3.0), min_size=20, max_size=80))
def test_losses_that_only_vary_within_their_range_hardly_ever_spike(losses: list[float]) -> None:
    assert not [step for step in spikes_of(losses) if losses[step] <= 2.5]


def test_what_becomes_of_a_spike_can_be_chosen() -> None:
    assert {action.value for action in SpikeAction} == {"warn", "end", "ignore"}
    assert Guard().on_spike is SpikeAction.warn
