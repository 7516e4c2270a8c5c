"""A run that Slurm interrupts goes on: one job, one run directory, one MLflow run, one curve."""

from __future__ import annotations

import json

import pytest
from support.cli import Run, Site
from support.cluster import DevCluster

STEPS = 160
SAVED = (f"recipe.steps={STEPS}", "recipe.checkpoint_every_steps=25")


@pytest.fixture(scope="module")
def reference(slurm_site: Site) -> dict[int, float]:
    """The curve of a run that nobody disturbs."""
    run = slurm_site.submit(f"recipe.steps={STEPS}")
    assert run.wait() == 0
    return run.losses()


def check_curve(run: Run, reference: dict[int, float]) -> None:
    """One MLflow run; no step lost or doubled, each with the value of the run that was not disturbed."""
    assert run.losses("*") == reference
    shown = run.mlflow()
    assert shown.status == "FINISHED"
    assert dict(shown.losses) == reference
    assert len(shown.losses) == len(reference)
    assert shown.tags["himori.attempt"] == str(len(run.ends()))


def test_requeue_and_the_loss_of_a_node_cost_a_run_nothing(
    slurm_site: Site, cluster: DevCluster, reference: dict[int, float]
) -> None:
    run = slurm_site.submit(*SAVED)
    run.wait_until_step(30)
    cluster.run("scontrol", "requeue", run.job_id)
    run.wait_until_step(60)
    nodes = cluster.run(
        "scontrol", "show", "hostnames", cluster.run("squeue", "-h", "-j", run.job_id, "-o", "%N").strip()
    )
    lost = nodes.split()[-1]
    cluster.node("kill", lost)
    try:
        assert run.wait() == 0
    finally:
        cluster.node("start", lost)
        cluster.wait_for(lambda: "idle" in cluster.run("sinfo", "-h", "-n", lost, "-p", "gpu", "-o", "%T"), limit_s=90)
    assert [end["cause"] for end in run.ends()] == ["preempted", "node_failure", None]
    assert [end["continues"] for end in run.ends()] == [True, True, False]
    assert run.ends()[0]["step"] > 25, "told to end, it saved the step it was at"
    assert lost not in {event["node"] for event in run.journal(3)}
    check_curve(run, reference)


@pytest.mark.faults
def test_preempted_three_times_by_a_higher_qos(
    slurm_site: Site, cluster: DevCluster, reference: dict[int, float]
) -> None:
    run = slurm_site.submit(*SAVED)
    for step in (30, 60, 90):
        run.wait_until_step(step)
        cluster.run(
            "sbatch", "--qos=high", "--exclusive", "--nodes=4", "--time=1", "--output=/dev/null", "--wrap=sleep 3"
        )
        cluster.wait_for(lambda: "PENDING" in cluster.run("squeue", "-h", "-j", run.job_id, "-o", "%T"), limit_s=60)
    assert run.wait() == 0
    assert [end["cause"] for end in run.ends()] == ["preempted"] * 3 + [None]
    check_curve(run, reference)


@pytest.mark.faults
def test_a_time_limit_is_gone_on_from_and_a_preemption_of_a_short_job_is_no_timeout(
    slurm_site: Site, cluster: DevCluster
) -> None:
    run = slurm_site.submit("recipe.steps=1500", "recipe.checkpoint_every_steps=400", "cluster.time_limit_min=5")
    run.wait_until_step(20)
    cluster.run("scancel", "--signal=USR2", run.job_id)
    cluster.wait_for(lambda: len(run.ends()) == 1, limit_s=60)
    assert run.ends()[0]["cause"] == "preempted"
    assert run.wait() == 0
    assert {end["cause"] for end in run.ends()[1:-1]} <= {"timeout"}
    assert sorted(run.losses("*")) == list(range(1, 1501))


@pytest.mark.faults
def test_killed_without_a_word_it_is_resumed_by_hand_and_trained_further(
    slurm_site: Site, cluster: DevCluster, reference: dict[int, float]
) -> None:
    run = slurm_site.submit(*SAVED)
    run.wait_until_step(55)
    cluster.run("scancel", "--signal=KILL", "--full", run.job_id)
    assert run.wait() == 5
    resumed = json.loads(slurm_site.himori("resume", "--json", run.run_id).stdout)
    assert resumed["attempt"] == 2
    assert resumed["from_step"] % 25 == 0
    assert run.wait() == 0
    check_curve(run, reference)
    slurm_site.himori("resume", run.run_id, "--steps", "170")
    assert run.wait() == 0
    assert sorted(run.losses("*")) == list(range(1, 171))
