"""What only a real Slurm can show of sweeps: its limits, its arrays, its quoting."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import HIMORI, Site, wait_until
from support.cluster import DEV, DevCluster, cluster_env, skip_or_fail

QUICK = Path(__file__).parents[1] / "support" / "quick"
ONE_RANK = ("experiment=demo", "ranks=1", "layout.tp=1", "cluster.cpus_per_rank=1")


@pytest.fixture
def quick(slurm_site: Site, shared_path: Path) -> Site:
    """The cluster with a run root of its own, where runs take no time."""
    environment = {**slurm_site.environment, "PYTHONPATH": str(QUICK), "QUICK_SECONDS": "0"}
    return dataclasses.replace(slurm_site, run_root=shared_path / "runs", environment=environment)


def submit(site: Site, *overrides: str) -> dict[str, Any]:
    """Submits a sweep; what it says."""
    arguments = ["submit", "-m", "--json", *ONE_RANK, *site.overrides, f"run_root={site.run_root}", *overrides]
    document: dict[str, Any] = json.loads(site.himori(*arguments).stdout)
    return document


def states(site: Site) -> dict[str, int]:
    """How many points of the newest sweep are in which state."""
    (document,) = json.loads(site.himori("sweep", "status", "last", "--json").stdout)
    found: dict[str, int] = document["states"]
    return found


@pytest.fixture(scope="module")
def narrow_cluster() -> Iterator[DevCluster]:
    """A cluster without accounting whose arrays have ten elements at most."""
    state = Path(tempfile.mkdtemp(prefix="himori-narrow-"))
    env = {**cluster_env(state), "DBD": "0", "PRIVATE_NODES": "", "EXTRA": "MaxArraySize=10"}
    up = subprocess.run([DEV / "up.sh"], env=env, capture_output=True, text=True, check=False)
    if up.returncode == 2:
        skip_or_fail(up.stderr.strip())
    assert up.returncode == 0, up.stdout + up.stderr
    yield DevCluster(state=state, env=env)
    subprocess.run([DEV / "down.sh"], env=env, capture_output=True, check=True)
    subprocess.run(["rm", "-rf", state], check=True)


def test_more_points_than_an_array_may_have_without_accounting(narrow_cluster: DevCluster, quick: Site) -> None:
    environment = {**quick.environment, "SLURM_CONF": narrow_cluster.env["SLURM_CONF"]}
    site = dataclasses.replace(quick, run_root=narrow_cluster.state / "jobs" / "runs", environment=environment)
    said = submit(site, "seed=range(23)")
    assert (said["submitted"], len(said["jobs"])) == (23, 3)
    wait_until(lambda: states(site) == {"FINISHED": 23}, 150, f"23 runs, there are {states(site)}")
    seeds = {json.loads((path / "point.json").read_text())["data"]["choices"]["seed"] for path in finished(site)}
    assert seeds == {str(seed) for seed in range(23)}
    # Each ran the code that was submitted, from its snapshot.
    (snapshot,) = (site.run_root / "code").iterdir()
    assert {(path / "ran-from").read_text(encoding="utf-8") for path in finished(site)} == {str(snapshot)}


def finished(site: Site) -> list[Path]:
    """Runs whose job began."""
    return [path.parent for path in site.run_root.glob("*/ran-from")]


def test_points_that_ask_for_the_same_share_an_array_others_have_their_own(quick: Site, cluster: DevCluster) -> None:
    held = ("cluster.sbatch.begin='now+1hour'",)
    said = submit(quick, "seed=1,2", "ranks=1,2", *held)
    assert len(said["jobs"]) == 2
    rows = cluster.run("squeue", "-h", "-r", "-j", ",".join(said["jobs"]), "-o", "%F %C").split("\n")
    assert sorted(rows)[1:] == sorted(2 * [f"{said['jobs'][0]} 1"] + 2 * [f"{said['jobs'][1]} 2"])
    assert "4 points ended" in quick.himori("sweep", "cancel", "last").stdout


def test_what_the_accounting_lets_in_is_submitted_and_the_rest_when_there_is_room(
    quick: Site, cluster: DevCluster
) -> None:
    limit = len(cluster.run("squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i").split()) + 3
    cluster.run("sacctmgr", "-i", "modify", "qos", "scav", "set", f"MaxSubmitJobsPerUser={limit}")
    try:
        narrow = ("seed=range(5)", "cluster.qos=scav")
        said = submit(quick, *narrow, "cluster.sbatch.begin='now+1hour'")
        assert (said["submitted"], said["left"]) == (3, 2)
        assert "3 points ended" in quick.himori("sweep", "cancel", "last").stdout
    finally:
        cluster.run("sacctmgr", "-i", "modify", "qos", "scav", "set", "MaxSubmitJobsPerUser=-1")
    assert submit(quick, *narrow)["submitted"] == 5
    wait_until(lambda: states(quick) == {"FINISHED": 5}, 90, f"5 runs, there are {states(quick)}")


def test_one_squeue_answers_for_a_sweep_and_none_is_no_answer(quick: Site, shared_path: Path) -> None:
    submit(quick, "seed=range(4)", "cluster.sbatch.begin='now+1hour'")
    shims = shared_path / "shims"
    shims.mkdir()
    calls = shims / "calls"
    for name in ("squeue", "sacct", "scontrol", "sacctmgr"):
        program = f'#!/bin/sh\necho {name} >> {calls}\n[ -e {shims}/silent ] && exit 1\nexec /usr/bin/{name} "$@"\n'
        (shims / name).write_text(program, encoding="utf-8")
        (shims / name).chmod(0o755)
    shimmed = {**quick.environment, "PATH": f"{shims}:{os.environ['PATH']}"}
    site = dataclasses.replace(quick, environment=shimmed)
    assert states(site) == {"QUEUED": 4}
    assert calls.read_text(encoding="utf-8") == "squeue\n"
    (shims / "silent").touch()
    assert states(site) == {"QUEUED": 4}
    assert "4 points ended" in quick.himori("sweep", "cancel", "last").stdout


def test_a_sweep_submitted_from_inside_an_element_of_an_array(quick: Site, cluster: DevCluster) -> None:
    command = [*HIMORI, "submit", "-m", *ONE_RANK, "cluster=dev", f"run_root={quick.run_root}", "seed=range(2)"]
    quoted = " ".join(f"'{word}'" for word in command)
    script = quick.run_root.parent / "outer.sh"
    script.write_text(f"#!/bin/bash\nexport PYTHONPATH={QUICK} QUICK_SECONDS=0\n{quoted}\n", encoding="utf-8")
    cluster.run("sbatch", "--wait", "--array=3", f"--output={script}.log", str(script), timeout_s=120)
    wait_until(lambda: states(quick) == {"FINISHED": 2}, 90, "both points")


HOSTILE = (
    "plain",
    "two words",
    "it's",
    'say "hi"',
    "$HOME $(id) `id`",
    "a;b&c|d>e<f",
    "back\\slash",
    "# no comment",
    "Größe 火守",
    "*?[a]{b,c}~!",
    "--hold=x",
    " lead and trail ",
)


@pytest.mark.parametrize("value", HOSTILE)
def test_values_arrive_as_they_were_given(quick: Site, cluster: DevCluster, value: str) -> None:
    escaped = value.replace("'", "\\'")
    name = value.replace("\\", "")  # refused where sbatch itself reads it
    said = submit(
        quick,
        "seed=1,2",
        f"cluster.env.HOSTILE='{escaped}'",
        "cluster.sbatch.begin='now+1hour'",
        f"name='{name}'".replace("it's", "it\\'s"),
    )
    try:
        shown = cluster.run("scontrol", "write", "batch_script", f"{said['jobs'][0]}", "-")
        exported = next(line for line in shown.splitlines() if line.startswith("export HOSTILE="))
        arrived = subprocess.run(
            ["bash", "-c", f'{exported}; printf %s "$HOSTILE"'], capture_output=True, text=True, check=True
        ).stdout
        assert arrived == value
        job = cluster.run("squeue", "-h", "-j", said["jobs"][0], "-O", "name:200").splitlines()[0]
        assert job.rstrip() == f"himori-{name}".rstrip()
    finally:
        quick.himori("sweep", "cancel", "last")


@pytest.mark.parametrize("key", ["cluster.sbatch.wckey", "cluster.env.X", "cluster.partition", "name"])
def test_what_would_arrive_changed_is_refused(quick: Site, key: str) -> None:
    for value in ("a\nb", "a\\b") if key != "cluster.env.X" else ("a\nb",):
        done = quick.himori("plan", *ONE_RANK, *quick.overrides, f'{key}="{value}"', check=False)
        assert done.returncode == 2
        assert "line end" in done.stderr


def jobs_known(cluster: DevCluster) -> set[str]:
    """Every job that the controller remembers, ended ones included; elements of arrays one by one."""
    return set(cluster.run("squeue", "-h", "-r", "-t", "all", "-o", "%i").split())


def test_plan_check_asks_slurm_and_submits_nothing(quick: Site, cluster: DevCluster) -> None:
    before = jobs_known(cluster)
    said = quick.himori("plan", "--check", "--json", *ONE_RANK, *quick.overrides, f"run_root={quick.run_root}")
    assert json.loads(said.stdout)["nodes"].startswith("n")
    refused = quick.himori("plan", "--check", *ONE_RANK, *quick.overrides, "cluster.partition=nope", check=False)
    assert refused.returncode == 3
    assert "partition" in refused.stderr
    assert jobs_known(cluster) <= before, "Slurm forgets old jobs meanwhile, but a new one would be in the list"
