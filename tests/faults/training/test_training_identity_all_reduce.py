"""A tensor-parallel all-reduce that does nothing is noticed by the comparison of layouts."""

from __future__ import annotations

from pathlib import Path

from training_workers import WORKER, Ended, parity_gaps, plan_for, run_workers, tiny_experiment, write_run

FAULTY_WORKER = (str(Path(__file__).with_name("identity_all_reduce.py")),)


def train(folder: Path, *, program: tuple[str, ...], tp: int) -> Ended:
    experiment = tiny_experiment(steps=3)
    run = write_run(folder, experiment, plan_for(experiment, tp=tp))
    ended = run_workers(run, ranks=tp, program=program)
    assert [rank.exit_code for rank in ended] == [0] * tp, "\n".join(rank.errors for rank in ended)
    return ended[0]


def test_the_fault_shows_on_two_ranks_and_only_there(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", program=WORKER, tp=1)
    assert parity_gaps(train(tmp_path / "single", program=FAULTY_WORKER, tp=1), reference) == []
    gaps = parity_gaps(train(tmp_path / "tp2", program=FAULTY_WORKER, tp=2), reference)
    assert len(gaps) == 6, gaps
