"""What only a real Slurm can show of a run."""

from __future__ import annotations

import json
import time

import pytest
from support.cli import HIMORI, Run, Site, wait_until
from support.cluster import DevCluster

LONG = "recipe.steps=100000"


def test_two_nodes_of_two_ranks_meet_and_learn(slurm_site: Site, cluster: DevCluster) -> None:
    run = slurm_site.submit("recipe.steps=30")
    assert run.wait() == 0
    job = cluster.run("sacct", "-X", "-n", "-P", "-j", run.job_id, "-o", "State,NNodes,Comment")
    assert job.strip() == f"COMPLETED|2|himori:{run.run_id}"
    assert len(list((run.path / "attempts" / "1" / "journal").glob("*.jsonl"))) == 2
    losses = list(run.losses().values())
    assert losses[-1] < losses[0] - 1


def test_the_loss_is_the_same_as_on_one_machine(slurm_site: Site, local_site: Site) -> None:
    there, here = slurm_site.submit("recipe.steps=8"), local_site.submit("recipe.steps=8")
    assert [there.wait(), here.wait()] == [0, 0]
    assert there.losses() == pytest.approx(here.losses(), rel=1e-5)


def test_scancel_ends_a_run_as_cancelled(slurm_site: Site, cluster: DevCluster) -> None:
    run = slurm_site.submit(LONG)
    run.wait_for_step()
    cluster.run("scancel", run.job_id)
    assert run.wait() == 6
    assert run.end()["state"] == "CANCELLED"
    assert run.mlflow().status == "KILLED"
    run.assert_nothing_left()


def test_cancelled_while_it_waits_in_the_queue(slurm_site: Site) -> None:
    run = slurm_site.submit("cluster.sbatch.begin='now+1hour'")
    wait_until(lambda: run.status()["state"] == "QUEUED", 10, "the job to wait")
    assert "CANCELLED" in slurm_site.himori("cancel", run.run_id).stdout
    assert run.wait() == 6
    assert run.mlflow().status == "KILLED"


def test_nodes_with_a_tmp_of_their_own_and_an_empty_home(slurm_site: Site) -> None:
    run = slurm_site.submit("recipe.steps=6", "cluster.sbatch.constraint=private")
    assert run.wait() == 0
    assert {event["node"] for event in run.journal()} == {"n3", "n4"}
    assert run.mlflow().status == "FINISHED"


def test_a_lost_node_ends_the_run_and_is_named(slurm_site: Site, cluster: DevCluster) -> None:
    run = slurm_site.submit(LONG, "cluster.sbatch.nodelist='n1,n2'", "cluster.max_attempts=1")
    run.wait_for_step()
    cluster.node("kill", "n2")
    try:
        wait_until(lambda: run.status()["state"] == "FAILED", 60, "the run to be FAILED")
        assert "n2" in run.end()["message"]
        assert run.wait() == 5
        run.assert_nothing_left(60)
    finally:
        cluster.node("start", "n2")
        cluster.wait_for(lambda: "idle" in cluster.run("sinfo", "-h", "-n", "n2", "-p", "gpu", "-o", "%T"), limit_s=90)


@pytest.mark.faults  # Slurm looks at limits twice a minute: 80 s for one test
def test_the_time_limit_is_called_a_timeout(slurm_site: Site) -> None:
    run = slurm_site.submit(LONG, "cluster.time_limit_min=1", "cluster.max_attempts=1")
    assert run.wait() == 5
    assert run.end()["state"] == "TIMEOUT"
    run.assert_nothing_left()


@pytest.mark.parametrize(
    ("override", "said"),
    [("cluster.partition=nope", "partition"), ("cluster.sbatch.constraint=nope", "feature"), ("nodes=9", "node")],
)
def test_what_slurm_refuses_is_said_in_its_own_words(slurm_site: Site, override: str, said: str) -> None:
    arguments = [
        "submit",
        "experiment=demo",
        "ranks=null",
        "recipe.global_batch=144",
        f"run_root={slurm_site.run_root}",
    ]
    done = slurm_site.himori(*arguments, *slurm_site.overrides, override, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert said in done.stderr.lower()


def test_submit_from_inside_a_job_is_a_job_of_its_own(slurm_site: Site, cluster: DevCluster) -> None:
    command = [*HIMORI, "submit", "--json", "experiment=demo", "recipe.steps=6", "cluster=dev"]
    inner = cluster.run("srun", "-N1", "-n1", *command, f"run_root={slurm_site.run_root}")
    document = json.loads(inner.strip().splitlines()[-1])
    run = Run(
        site=slurm_site,
        run_id=document["run_id"],
        path=slurm_site.run_root / document["run_id"],
        job_id=document["job_id"],
    )
    assert run.wait() == 0
    assert len({event["node"] for event in run.journal()}) == 2


def test_status_tells_the_truth_when_slurm_has_forgotten_the_job(slurm_site: Site, cluster: DevCluster) -> None:
    run = slurm_site.submit("recipe.steps=6")
    assert run.wait() == 0
    environment = {**cluster.env, "PATH": f"{run.path / 'no-slurm'}:/usr/bin:/bin"}
    (run.path / "no-slurm").mkdir()
    for name in ("squeue", "sacct", "scontrol"):
        silent = run.path / "no-slurm" / name
        silent.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        silent.chmod(0o755)
    site = Site(name="slurm", run_root=slurm_site.run_root, overrides=(), environment=environment)
    began = time.monotonic()
    assert Run(site=site, run_id=run.run_id, path=run.path, job_id="").status()["state"] == "FINISHED"
    assert time.monotonic() - began < 10
