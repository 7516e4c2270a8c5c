"""What a probe of nodes asks Slurm for, and what it makes of srun's answers; srun and sinfo are scripts on PATH."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launchers.probing import Answers, NodeRequest, expand, probe_nodes, srun_command
from pipeline.errors import ClusterError, HimoriError, UserError
from pipeline.types import Cluster, GpuDialect, LauncherKind

SITE = Cluster(name="site", launcher=LauncherKind.slurm)
TWO = NodeRequest(nodelist="n1,n10", count=2, gpus=8)
STATES = "n1|idle|none\nn2|down*|Not responding\nn3|drained|bad fan\nn10|mixed|none\n"


def program(folder: Path, name: str, script: str) -> None:
    """A command on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def slurm(folder: Path, srun: str) -> Mapping[str, str]:
    """An environment in which these are Slurm's commands."""
    program(folder, "sinfo", f"cat << 'EOF'\n{STATES}EOF")
    program(folder, "srun", srun)
    return {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/x"}


def answer(*lines: str) -> str:
    """A script that prints what srun would."""
    return "\n".join(f"echo '{line}'" for line in lines)


def ask(environ: Mapping[str, str], request: NodeRequest = TWO) -> Answers:
    return probe_nodes(SITE, request, arguments=[], environ=environ, say=lambda _: None)


def test_the_lines_of_tasks_come_mixed_and_setup_prints_too(tmp_path: Path) -> None:
    lines = ("1: Loading cuda", "1: himori-probe-of n1", "0: himori-probe-of n10", "1: {", '0: {"a": 1}', '1: "b": 2}')
    found = ask(slurm(tmp_path, answer(*lines)))
    assert list(found.documents.items()) == [("n1", {"b": 2}), ("n10", {"a": 1})]
    assert found.failure is None


def test_an_answer_that_is_missing_or_cut_is_no_answer(tmp_path: Path) -> None:
    script = answer("0: himori-probe-of n1", "0: {}", "1: himori-probe-of n10", "1: {") + "\necho '1: boom' >&2; exit 1"
    found = ask(slurm(tmp_path, script))
    assert list(found.documents) == ["n1"]
    assert found.failure == "boom"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("srun: error: Unable to allocate resources: Invalid qos", "Unable to allocate resources: Invalid qos"),
        ("srun: warning\n0: himori: cpus: bad\nsrun: error: n1: task 0: Exited with exit code 2", "cpus: bad"),
        ("0: sh: /nope: not found\nsrun: error: n1: task 0: Exited with exit code 127", "sh: /nope: not found"),
        ("", "exit code 9"),
    ],
)
def test_what_went_wrong_is_one_line(printed: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"^no node was probed: [^\n]*$") as caught:
        ask(slurm(tmp_path, f"printf '%s' '{printed}' >&2; exit 9"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("nodelist", "kind", "said"),
    [
        ("n9", UserError, "no node n9; the cluster has n[1-3,10]"),
        ("n[1-2]", ClusterError, "n2 is down* (Not responding): leave it out"),
        ("n[2-3]", ClusterError, "n3 is drained (bad fan): leave them out"),
        ("n[", UserError, "can't be read"),
        ("", UserError, "names no node"),
    ],
)
def test_nodes_that_cannot_answer_are_named_before_anything_is_queued(
    nodelist: str, kind: type[HimoriError], said: str, tmp_path: Path
) -> None:
    environ = slurm(tmp_path, "touch called; exit 1")
    with pytest.raises(kind) as caught:
        ask(environ, replace(TWO, nodelist=nodelist))
    assert said in str(caught.value)
    assert not (tmp_path / "called").exists()


def test_inside_of_a_job_srun_is_not_told_of_it(tmp_path: Path) -> None:
    script = """echo '0: himori-probe-of n1'; echo "0: {\\"v\\": \\"$SLURM_JOB_ID,$SLURM_CONF\\"}" """
    assert ask(slurm(tmp_path, script)).documents["n1"] == {"v": ",/etc/x"}


def test_without_slurm_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="not on PATH"):
        ask({"PATH": str(tmp_path)})


def test_nodes_are_asked_for_as_runs_are() -> None:
    site = replace(
        SITE,
        partition="gpu",
        account="llm",
        gpu_dialect=GpuDialect.gres,
        sbatch={"constraint": "h100", "contiguous": ""},
        setup=["module load x"],
        python="/env/python",
    )
    command = srun_command(site, TWO, arguments=["--ranks", "2"])
    options = command[: command.index("bash")]
    assert {"--exclusive", "--gres=gpu:8", "--constraint=h100", "--contiguous", "--account=llm"} <= set(options)
    assert {"--nodes=2", "--ntasks-per-node=1", "--nodelist=n1,n10", "--partition=gpu"} <= set(options)
    assert "module load x" in command[command.index("bash") + 2]
    assert command[-8:] == ["/env/python", "-P", "-m", "pipeline", "probe", "--json", "--ranks", "2"]


@pytest.mark.parametrize(("changes", "gpus"), [({"request_gpus": False}, 8), ({}, 0)])
def test_gpus_are_not_asked_for_where_there_are_none(changes: dict[str, bool], gpus: int) -> None:
    command = srun_command(replace(SITE, **changes), replace(TWO, gpus=gpus), arguments=[])
    assert not [word for word in command if word.startswith(("--gpus", "--gres"))]


def test_ranges_of_nodes() -> None:
    assert expand("n[1-3,7],m1") == ["n1", "n2", "n3", "n7", "m1"]
