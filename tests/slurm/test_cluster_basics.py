"""The development cluster does what the other tests here take for granted."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from support.cluster import DevCluster

REPO = Path(__file__).resolve().parents[2]

LISTEN_ON_N1_CONNECT_FROM_N2 = """
import os, pathlib, socket, sys, time
port = pathlib.Path(sys.argv[1])
if socket.gethostname() == "n1":
    with socket.create_server(("n1", 0)) as server:
        server.settimeout(20)
        part = port.with_suffix(".part")
        part.write_text(str(server.getsockname()[1]))
        part.rename(port)
        with server.accept()[0] as peer:
            print("n1 heard", peer.recv(100).decode())
else:
    while not port.exists():
        time.sleep(0.1)
    with socket.create_connection(("n1", int(port.read_text())), timeout=20) as peer:
        peer.sendall(socket.gethostname().encode())
"""


def submit(cluster: DevCluster, script: str, output: Path, *options: str) -> str:
    """Id of a batch job that runs the shell commands `script`."""
    command = ("sbatch", "--parsable", "--time=5", f"--output={output}", *options, f"--wrap={script}")
    return cluster.run(*command, timeout_s=120).strip()


def accounted(cluster: DevCluster, job_id: str, *options: str, fields: str = "State") -> list[str]:
    """One line for each time the job ran."""
    return cluster.run("sacct", "-X", "-n", "-P", "-j", job_id, "-o", fields, *options).split("\n")[:-1]


def on_node(cluster: DevCluster, node: str, script: str) -> str:
    return cluster.run("srun", "-N1", "-n1", "-w", node, "bash", "-c", script)


def test_tasks_see_the_name_of_their_node(cluster: DevCluster) -> None:
    out = cluster.run("srun", "-N2", "-n4", "-w", "n1,n2", "hostname")
    assert sorted(out.split()) == ["n1", "n1", "n2", "n2"]


def test_a_finished_job_is_accounted_with_its_comment(cluster: DevCluster, shared_path: Path) -> None:
    comment = '{"run": "a b"}'
    job = submit(cluster, "echo done", shared_path / "out", "--wait", f"--comment={comment}")
    assert (shared_path / "out").read_text() == "done\n"
    cluster.wait_for(lambda: accounted(cluster, job, fields="State,Comment") == [f"COMPLETED|{comment}"], limit_s=10)


def test_a_job_sees_the_gpus_it_asked_for(cluster: DevCluster) -> None:
    out = cluster.run("srun", "-n1", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE")
    visible, count = out.split()
    assert len(set(visible.split(","))) == 2
    assert count == "2"


def test_high_qos_preempts_normal_and_scav(cluster: DevCluster) -> None:
    lines = cluster.run("sacctmgr", "-n", "-P", "show", "qos", "format=name,preempt").split()
    preempts = dict(line.split("|") for line in lines)
    assert set(preempts) == {"normal", "high", "scav"}
    assert set(preempts["high"].split(",")) == {"normal", "scav"}


def test_two_jobs_run_at_once(cluster: DevCluster, shared_path: Path) -> None:
    def meet(me: str, other: str) -> str:
        script = f"touch {me}; for i in $(seq 100); do [ -e {other} ] && exit 0; sleep 0.2; done; exit 1"
        return submit(cluster, script, shared_path / f"{me}.out", f"--chdir={shared_path}")

    jobs = [meet("a", "b"), meet("b", "a")]
    cluster.wait_for(lambda: [accounted(cluster, job) for job in jobs] == [["COMPLETED"], ["COMPLETED"]], limit_s=40)


def test_nodes_reach_each_other_by_name(cluster: DevCluster, shared_path: Path) -> None:
    program = [sys.executable, "-c", LISTEN_ON_N1_CONNECT_FROM_N2, str(shared_path / "port")]
    out = cluster.run("srun", "-N2", "-n2", "-w", "n1,n2", *program)
    assert out == "n1 heard n2\n"


def test_private_nodes_have_a_tmp_of_their_own_and_an_empty_home(cluster: DevCluster) -> None:
    script = 'ls -A "$HOME/."; ls -d "$0" 2>/dev/null; hostname'
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="canary-") as canary:
        private = cluster.run("srun", "-N2", "-n2", "--constraint=private", "bash", "-c", script, canary.name)
        shared = cluster.run("srun", "-N1", "-n1", "-w", "n1", "bash", "-c", 'ls -d "$0"', canary.name)
    left_by_other_tests = {name for name in private.split() if name.startswith("himori-private-")}
    assert set(private.split()) - left_by_other_tests == {"n3", "n4"}
    assert shared.strip() == canary.name


def test_a_batch_script_on_a_private_node_has_the_private_home(cluster: DevCluster, shared_path: Path) -> None:
    submit(cluster, 'echo "$HOME"; srun printenv HOME', shared_path / "out", "--wait", "-w", "n3")
    assert (shared_path / "out").read_text().split() == [str(cluster.state / "home")] * 2


def test_what_a_private_node_writes_stays_there(cluster: DevCluster) -> None:
    write = 'mark=himori-private-$SLURM_JOB_ID; touch "/tmp/$mark" "$HOME/$mark"; echo "$mark"'
    mark = on_node(cluster, "n3", write).strip()
    look = f'ls -d "/tmp/{mark}" "$HOME/{mark}" "{cluster.state}/home/{mark}" 2> /dev/null | wc -l'
    assert {node: int(on_node(cluster, node, look)) for node in ("n1", "n3", "n4")} == {"n1": 0, "n3": 3, "n4": 0}


@pytest.mark.faults  # 40 s; a lost node under a run is tested in every run of the suite
def test_a_job_survives_the_power_loss_of_its_node(cluster: DevCluster, shared_path: Path) -> None:
    out = shared_path / "out"
    script = 'echo "start ${SLURM_RESTART_COUNT:-0}"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 300'
    job = submit(cluster, script, out, "--requeue", "--open-mode=append", "-w", "n2")
    cluster.wait_for(lambda: out.exists() and out.read_text() == "start 0\n", limit_s=20)
    try:
        cluster.node("kill", "n2")
        cluster.wait_for(lambda: "NODE_FAIL" in accounted(cluster, job, "--duplicates"))
    finally:
        cluster.node("start", "n2")
    cluster.wait_for(lambda: accounted(cluster, job, "--duplicates") == ["NODE_FAIL", "COMPLETED"])
    assert out.read_text() == "start 0\nstart 1\n"
    assert cluster.run("sinfo", "-h", "-p", "gpu", "-n", "n2", "-o", "%T").strip() == "idle"
