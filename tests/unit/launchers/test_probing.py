"""What a probe of nodes asks Slurm for, and what it makes of srun's answers; srun and sinfo are scripts on PATH."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launchers.probing import Answers, NodeRequest, expand, probe_nodes, srun_command
from pipeline.errors import ClusterError, HimoriError, UserError
from pipeline.types import Cluster, GpuDialect, LauncherKind

SITE = Cluster(name="site", launcher=LauncherKind.slurm)
TWO = NodeRequest(nodelist="n1,n10", count=2, gpus=8)
Slurm = Callable[[str], None]
"""Takes the script of srun."""
STATES = "n1|idle|none\nn2|down*|Not responding\nn3|drained|bad fan\nn10|mixed|none\n"


def program(folder: Path, name: str, script: str) -> None:
    """A command on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Slurm's commands on PATH, as seen from inside of a job."""
    program(tmp_path, "sinfo", f"cat << 'EOF'\n{STATES}EOF")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    return lambda srun: program(tmp_path, "srun", srun)


def answer(*lines: str) -> str:
    """A script that prints what srun would."""
    return "\n".join(f"echo '{line}'" for line in lines)


def ask(request: NodeRequest = TWO) -> Answers:
    return probe_nodes(SITE, request, arguments=[], say=lambda _: None)


def test_the_lines_of_tasks_come_mixed_and_setup_prints_too(slurm: Slurm) -> None:
    slurm(
        answer("1: Loading x", "1: himori-probe-of n1", "0: himori-probe-of n10", "1: {", '0: {"a": 1}', '1: "b": 2}')
    )
    found = ask()
    assert list(found.documents.items()) == [("n1", {"b": 2}), ("n10", {"a": 1})]
    assert found.failure is None


def test_an_answer_that_is_missing_or_cut_is_no_answer(slurm: Slurm) -> None:
    slurm(answer("0: himori-probe-of n1", "0: {}", "1: himori-probe-of n10", "1: {") + "\necho '1: boom' >&2; exit 1")
    found = ask()
    assert list(found.documents) == ["n1"]
    assert found.failure == "boom"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("srun: error: Unable to allocate resources: Invalid qos", "Unable to allocate resources: Invalid qos"),
        ("srun: warning\\n0: himori: cpus: bad\\nsrun: error: n1: task 0: Exited with exit code 2", "cpus: bad"),
        ("0: sh: /nope: not found\\nsrun: error: n1: task 0: Exited with exit code 127", "sh: /nope: not found"),
        ("", "exit code 9"),
    ],
)
def test_what_went_wrong_is_one_line(printed: str, said: str, slurm: Slurm) -> None:
    slurm(f"printf '{printed}' >&2; exit 9")
    with pytest.raises(ClusterError) as caught:
        ask()
    assert str(caught.value) in (f"no node was probed: {said}", f"no node was probed: srun ended with {said}")


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
    nodelist: str, kind: type[HimoriError], said: str, slurm: Slurm, tmp_path: Path
) -> None:
    slurm(f"touch {tmp_path}/called; exit 1")
    with pytest.raises(kind) as caught:
        ask(replace(TWO, nodelist=nodelist))
    assert said in str(caught.value)
    assert not (tmp_path / "called").exists()


def test_inside_of_a_job_srun_is_not_told_of_it(slurm: Slurm) -> None:
    slurm("""echo '0: himori-probe-of n1'; echo "0: {\\"v\\": \\"$SLURM_JOB_ID,$SLURM_CONF\\"}" """)
    assert ask().documents["n1"] == {"v": ",/etc/x"}


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="not on PATH"):
        ask()


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
