"""`himori probe cluster=…`: nodes of a real Slurm look at themselves and are compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.cli import Site
from support.cluster import LOOKS, DevCluster


def probe(site: Site, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return site.himori("probe", *site.overrides, *arguments, check=check)


def test_nodes_look_at_themselves_and_are_sorted_into_kinds(look_site: Site, tmp_path: Path) -> None:
    done = probe(look_site, "nodelist=n[1-3]", "--json", "-o", str(tmp_path / "recordings"))
    document = json.loads(done.stdout)
    assert list(document["nodes"]) == ["n1", "n2", "n3"]
    assert sorted(document["kinds"]) == [["n1"], ["n2"], ["n3"]]
    assert document["failure"] is None
    differences = {row["what"]: row["values"] for row in document["differences"]}
    assert differences["NUMA node of each GPU"] == ["0 0 2 2 3 3 5 5", "0 0 0 0 1 1 1 1", "1 1 0 0"]
    gpus = [binding["gpu"] for binding in document["nodes"]["n1"]["bindings"]]
    assert len(set(gpus)) == 8
    for node in ("n1", "n2", "n3"):
        recording = tmp_path / "recordings" / f"{node}.yaml"
        words = recording.read_text(encoding="utf-8").split()
        assert node not in words
        replayed = json.loads(look_site.himori("probe", "--json", "--read", str(recording)).stdout)
        assert replayed["bindings"] == document["nodes"][node]["bindings"]


def test_people_get_a_table_of_where_nodes_differ(look_site: Site) -> None:
    done = probe(look_site, "nodes=2", "hardware=dgx_b200", "cluster.sbatch.constraint=b200|h200")
    assert "2 kinds of nodes; they differ in" in done.stdout
    assert "6 x" not in done.stdout
    assert "8 x NVIDIA B200" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nodelist=n9"], 2, f"no node n9; the cluster has n[1-{len(LOOKS)}]"),
        (["nodes=99"], 3, "Node count specification invalid"),
        (["cluster.partition=nope"], 3, "nope"),
        (["nodes=2", "nodelist=n1"], 2, "not together"),
        (["cluster=local"], 2, "cluster=NAME of a Slurm cluster"),
        (["nodes=0"], 2, "at least 1"),
    ],
)
def test_what_cannot_be_probed_is_said_on_one_line(arguments: list[str], code: int, said: str, look_site: Site) -> None:
    site = look_site if "cluster=local" not in arguments else Site(name="", run_root=look_site.run_root, overrides=())
    done = probe(site, *arguments, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_node_that_is_drained_is_named_with_its_reason(look_site: Site, look_cluster: DevCluster) -> None:
    look_cluster.run("scontrol", "update", "nodename=n3", "state=drain", "reason=bad fan")
    try:
        done = probe(look_site, "nodelist=n[2-3]", check=False)
    finally:
        look_cluster.run("scontrol", "update", "nodename=n3", "state=resume")
    assert done.returncode == 3
    assert done.stderr == "himori: n3 is drained (bad fan): leave it out of nodelist=\n"
