"""Ranks are put where the node says, look at themselves, and every run carries the certificate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificates, ids, ranks_of
from support.cli import HIMORI, Run, Site, wait_until
from support.cluster import DEV, skip_or_fail

SUPPORT = Path(__file__).resolve().parents[1] / "support"
SHORT = "recipe.steps=6"
SET_AND_GET_MEMPOLICY = "238,239"


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in run.journal() if event["kind"] == kind]


def status_of(pid: int, field: str) -> str:
    """A field of /proc/PID/status."""
    found = re.search(rf"^{field}:\s*(\S+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found
    return found[1]


def test_every_rank_is_where_its_certificate_says(site: Site) -> None:
    run = site.submit("recipe.steps=100000")
    run.wait_for_step()
    ranks = ranks_of(run.path)
    assert sorted(ranks) == [0, 1, 2, 3]
    for number, rank in ranks.items():
        cpus = sorted(ids(status_of(run.worker(number), "Cpus_allowed_list")))
        assert rank["planned"]["cpus"] == cpus
        assert [seen["cpus"] for seen in rank["observed"]] == [cpus, cpus]
        assert [seen["moment"] for seen in rank["observed"]] == ["start", "model"]
        assert rank["differences"] == []
    for node, certificate in certificates(run.path).items():
        allowed = ids(certificate["snapshot"]["allowed"])
        crowded = len(certificate["ranks"]) > len(allowed)
        assert ("OVERSUBSCRIBED" in certificate["flags"]) == crowded, node
        assert certificate["red"] == []
    site.himori("cancel", run.run_id)
    assert run.wait() == 6
    flags = sorted({flag for certificate in certificates(run.path).values() for flag in certificate["flags"]})
    assert run.mlflow().tags["himori.binding"] == ",".join(flags)
    assert {event["red"] == [] for event in events(run, "binding")} == {True}
    assert "binding: rank 3  CPUs" in site.himori("logs", run.run_id).stdout


def test_without_binding_it_says_so_and_the_certificate_is_an_artifact(local_site: Site, tmp_path: Path) -> None:
    run = replace(local_site, run_root=tmp_path / "runs").submit(SHORT, "cluster.binding=none")
    assert run.wait() == 0
    (artifact,) = (tmp_path / "runs").glob("mlartifacts/**/binding/local.json")
    certificate = certificates(run.path)["local"]
    assert json.loads(artifact.read_text())["data"] == certificate
    assert (certificate["flags"], certificate["red"]) == (["UNBOUND"], [])
    assert {tuple(rank["observed"][1]["cpus"]) for rank in certificate["ranks"]} == {
        tuple(sorted(os.sched_getaffinity(0)))
    }
    assert run.mlflow().tags["himori.binding"] == "UNBOUND"


def test_a_rehearsal_puts_ranks_in_their_places_and_trains_nothing(local_site: Site, tmp_path: Path) -> None:
    run = replace(local_site, run_root=tmp_path / "runs").submit("rehearsal=true")
    assert run.wait() == 0
    assert run.losses() == {}
    ranks = ranks_of(run.path)
    assert sorted(ranks) == [0, 1, 2, 3]
    for rank in ranks.values():
        assert [(seen["moment"], seen["cpus"]) for seen in rank["observed"]] == [("start", rank["planned"]["cpus"])]
    assert "a rehearsal" in (run.path / "plan.txt").read_text()


def test_one_cpu_is_shared_without_failure(tmp_path: Path) -> None:
    run_dir = run_under(["taskset", "-c", "0"], tmp_path)
    certificate = certificates(run_dir)["local"]
    assert "OVERSUBSCRIBED" in certificate["flags"]
    assert certificate["red"] == []
    for rank in certificate["ranks"]:
        assert [seen["cpus"] for seen in rank["observed"]] == [[0], [0]]
    assert "4 ranks share CPUs 0" in certificate["warnings"][0]


def test_where_memory_policies_are_forbidden_the_run_says_so(tmp_path: Path) -> None:
    run_dir = run_under([sys.executable, str(SUPPORT / "refuse.py"), SET_AND_GET_MEMPOLICY], tmp_path)
    certificate = certificates(run_dir)["local"]
    assert "FALLBACK" in certificate["flags"]
    assert certificate["red"] == []
    for rank in certificate["ranks"]:
        assert rank["observed"][1]["cpus"] == rank["planned"]["cpus"]
        assert "preferred 0 was refused (EPERM)" in rank["denied"]


@pytest.mark.slurm
def test_a_part_of_a_big_node_that_lacks_the_memory_of_one_socket(tmp_path: Path) -> None:
    """What a cpuset of CPUs on both sockets and memory on one comes to."""
    prefix = [str(DEV / "as-node.sh"), "h200x8-2numa", "env", "FAKENODE_MEMS=1", "taskset", "-c", "40-71"]
    run_dir = run_under(prefix, tmp_path, "rehearsal=true")
    certificate = certificates(run_dir)["local"]
    assert certificate["red"] == []
    assert certificate["snapshot"]["allowed"] == "40-71"
    seats = [(rank["planned"]["home"], rank["observed"][0]["cpus"]) for rank in certificate["ranks"]]
    assert [home for home, _ in seats] == [0, 0, 1, 1]
    assert [cpus for _, cpus in seats] == [[*range(first, first + 8)] for first in (40, 48, 56, 64)]
    for rank in certificate["ranks"]:
        lacks_memory = rank["planned"]["home"] == 0
        assert rank["flags"] == (["FALLBACK"] if lacks_memory else ["EXACT"])
        memory = rank["observed"][0]["memory"]
        assert (memory["mode"], memory["nodes"]) == (("default", []) if lacks_memory else ("preferred_many", [1]))


def run_under(prefix: list[str], tmp_path: Path, *overrides: str) -> Path:
    """The directory of a short local run below another program."""
    command = [*prefix, *HIMORI, "run", "experiment=demo", SHORT, f"run_root={tmp_path / 'runs'}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.stderr.startswith("refused: "):
        skip_or_fail(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = (path for path in (tmp_path / "runs").iterdir() if (path / "config.yaml").exists())
    return run_dir


@pytest.fixture
def breaking_site(local_site: Site) -> Site:
    """A place where rank 1 moves to other CPUs and rank 2 takes another memory policy."""
    broken = {"PYTHONPATH": str(SUPPORT / "rebind"), "REBIND_CPUS": "1", "REBIND_MEMORY": "2"}
    return replace(local_site, environment={**local_site.environment, **broken})


def test_a_broken_binder_turns_the_certificate_red(breaking_site: Site) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("with one CPU there is nowhere else to go")
    run = breaking_site.submit(SHORT)
    assert run.wait() == 0
    wait_until(lambda: "himori.binding" in run.mlflow().tags, 30, "the tag of the binding")
    ranks = ranks_of(run.path)
    assert certificates(run.path)["local"]["red"] == [1, 2]
    assert "runs on CPUs" in ranks[1]["differences"][0]
    assert "has memory policy interleave 0 instead of preferred_many 0" in ranks[2]["differences"][0]
    assert run.mlflow().tags["himori.binding"] == "RED"
    warned = [event["message"] for event in events(run, "warning")]
    assert [message.split(" has ")[0].split(" runs ")[0] for message in warned] == ["rank 1"] * 2 + ["rank 2"] * 2
