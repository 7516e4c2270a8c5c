"""What befalls a run on this machine: told to make room, hung, resumed by hand."""

from __future__ import annotations

import json
import os
import signal

import pytest
from support.cli import Site, wait_until


def test_told_to_make_room_it_goes_on_in_its_session_and_can_be_trained_further(local_site: Site) -> None:
    run = local_site.submit("recipe.steps=40", "recipe.checkpoint_every_steps=10")
    run.wait_until_step(13)
    os.killpg(int(run.job_id), signal.SIGUSR2)
    assert run.wait() == 0
    first, last = run.ends()
    assert (first["state"], first["cause"], first["continues"]) == ("PREEMPTED", "preempted", True)
    assert first["step"] >= 13
    assert last["state"] == "FINISHED"
    assert sorted(run.losses(2)) == list(range(first["step"] + 1, 41))
    refused = local_site.himori("resume", run.run_id, check=False)
    assert refused.returncode == 2
    assert "--steps N" in refused.stderr
    assert json.loads(local_site.himori("resume", "--json", run.run_id, "--steps", "44").stdout)["from_step"] == 40
    assert run.wait() == 0
    assert sorted(run.losses(3)) == [41, 42, 43, 44]
    shown = run.mlflow()
    assert shown.status == "FINISHED"
    assert [step for step, _ in shown.losses] == list(range(1, 45))
    run.assert_nothing_left()


def test_a_rank_that_stops_is_named_and_not_those_that_wait_for_it(local_site: Site) -> None:
    run = local_site.submit("recipe.steps=100000", "cluster.hang_least_s=10", "cluster.max_attempts=1")
    run.wait_until_step(3)
    os.kill(run.worker(2), signal.SIGSTOP)
    wait_until(lambda: bool(run.ends()), 120, "the watchdog")
    end = run.ends()[0]
    assert end["cause"] == "hang"
    assert "rank 2 on local is late" in end["message"]
    assert "process state T" in end["message"]
    assert end["message"].endswith("3 ranks wait")
    for rank in (0, 1, 3):
        assert "_accumulate" in (run.path / "attempts" / "1" / "stacks" / f"rank-{rank}.txt").read_text()
    assert run.wait() == 5
    run.assert_nothing_left()


@pytest.mark.faults
def test_memory_that_the_host_does_not_have_is_called_that(local_site: Site) -> None:
    run = local_site.submit("recipe.steps=10", "cluster.setup=['ulimit -v 6000000']", "model.ffn_hidden_size=2000000")
    assert run.wait() == 5
    assert run.ends()[0]["cause"] == "host_oom"
    assert run.ends()[0]["continues"] is False
