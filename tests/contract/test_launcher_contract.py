"""One contract for every launcher: what a user can count on wherever a run goes."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.cli import Site, wait_until

LONG = "recipe.steps=100000"


def test_a_run_from_submit_to_mlflow(site: Site) -> None:
    began = time.monotonic()
    run = site.submit("recipe.steps=12")
    assert time.monotonic() - began < 20
    assert run.status()["state"] in ("QUEUED", "RUNNING")
    assert run.wait() == 0
    status = run.status()
    assert (status["state"], status["job_id"]) == ("FINISHED", run.job_id)
    assert status["progress"]["step"] == 12
    assert list(run.losses()) == list(range(1, 13))
    shown = run.mlflow()
    assert shown.status == "FINISHED"
    assert [step for step, _ in shown.losses] == list(range(1, 13))
    assert [value for _, value in shown.losses] == pytest.approx(list(run.losses().values()))
    assert shown.tags["himori.job_id"] == run.job_id
    assert "was over already" in site.himori("cancel", run.run_id).stdout
    run.assert_nothing_left()


def test_a_worker_that_fails_is_named_with_its_last_line(site: Site) -> None:
    too_short = site.run_root.parent / "too-short.txt"
    too_short.write_text("abc", encoding="utf-8")
    run = site.submit(f"data.path={too_short}", LONG)
    assert run.wait() == 5
    end = run.end()
    assert end["state"] == "FAILED"
    assert end["first"]["exit_code"] == 2
    assert "too-short.txt" in end["message"]
    assert "too-short.txt" in site.himori("logs", run.run_id).stdout
    assert run.mlflow().status == "FAILED"
    run.assert_nothing_left()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.faults), 3])
def test_kill_9_of_a_worker_ends_the_run_with_the_rank_named(site: Site, rank: int) -> None:
    run = site.submit(LONG)
    run.wait_for_step()
    os.kill(run.worker(rank), signal.SIGKILL)
    wait_until(lambda: run.status()["state"] == "FAILED", 60, "the run to be FAILED")
    assert f"rank {rank} " in run.end()["message"]
    assert "SIGKILL" in run.end()["message"]
    assert run.wait() == 5
    assert run.mlflow().status == "FAILED"
    run.assert_nothing_left()


@pytest.mark.parametrize("rank", [0, pytest.param(3, marks=pytest.mark.faults)])
def test_kill_9_of_a_supervisor_ends_the_run_with_the_rank_named(site: Site, rank: int) -> None:
    run = site.submit(LONG)
    run.wait_for_step()
    os.kill(run.supervisor(rank), signal.SIGKILL)
    wait_until(lambda: run.status()["state"] == "FAILED", 60, "the run to be FAILED")
    assert f"rank {rank} " in run.end()["message"]
    assert run.wait() == 5
    assert run.mlflow().status == "FAILED"
    run.assert_nothing_left()


def test_cancel_ends_a_run_as_cancelled(site: Site) -> None:
    run = site.submit(LONG)
    run.wait_for_step()
    assert "CANCELLED" in site.himori("cancel", run.run_id).stdout
    assert run.wait() == 6
    assert run.mlflow().status == "KILLED"
    run.assert_nothing_left()


def test_two_runs_at_once_do_not_meet(site: Site) -> None:
    runs = [site.submit("recipe.steps=6"), site.submit("recipe.steps=6")]
    assert [run.wait() for run in runs] == [0, 0]
    assert runs[0].path != runs[1].path
    assert [list(run.losses()) for run in runs] == [list(range(1, 7))] * 2
    assert runs[0].losses() == pytest.approx(runs[1].losses())
