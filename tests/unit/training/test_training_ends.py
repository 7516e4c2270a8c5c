"""How a worker ends: at once, with the right exit code and one line for people."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from training_workers import Ended, plan_for, run_workers, tiny_experiment, write_run

from pipeline.rundir import RunDir
from pipeline.types import WorkerCode


def last_line(ended: Ended) -> str:
    return ended.errors.strip().splitlines()[-1]


def test_a_loss_that_blows_up_ends_the_run_naming_the_step(tmp_path: Path) -> None:
    experiment = tiny_experiment()
    experiment.optimizer.lr, experiment.optimizer.warmup_steps = 1e30, 0
    (ended,) = run_workers(write_run(tmp_path, experiment, plan_for(experiment)), ranks=1)
    assert ended.exit_code == WorkerCode.numerics
    assert last_line(ended).startswith("himori: rank 0 on testnode: step 2: ")
    assert "not finite" in last_line(ended)
    (warning,) = ended.of_kind("warning")
    assert warning["message"].startswith("step 2: ")
    assert [event["step"] for event in ended.of_kind("metrics")] == [1]


def test_ranks_that_never_come_are_named_within_the_timeout(tmp_path: Path) -> None:
    experiment = tiny_experiment()
    experiment.cluster.rendezvous_timeout_s = 2.0
    run = write_run(tmp_path, experiment, plan_for(experiment, dp=4))
    (ended,) = run_workers(run, ranks=4, absent=[1, 2, 3])
    assert ended.exit_code == WorkerCode.network
    assert last_line(ended).endswith("3 of 4 ranks did not report within 2 s: 1, 2, 3")


def test_a_rank_that_fails_leaves_at_once_while_its_peer_waits(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "text").write_text("all work and no play " * 100)
    experiment = tiny_experiment()
    experiment.data.path = "text"
    run = write_run(tmp_path / "run", experiment, plan_for(experiment, dp=2))
    ended = run_workers(run, ranks=2, folders=[here, there])
    assert ended[1].exit_code == 2
    assert last_line(ended[1]) == (
        "himori: rank 1 on testnode: data.path: text can't be read (No such file or directory); name a file or folder"
    )
    assert ended[0].exit_code == 1


def test_ranks_that_read_different_text_all_say_so(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "text").write_text(f"{folder.name} " * 1000)
    experiment = tiny_experiment()
    experiment.data.path = "text"
    run = write_run(tmp_path / "run", experiment, plan_for(experiment, dp=2))
    ended = run_workers(run, ranks=2, folders=folders, take_over_port=False)
    assert [rank.exit_code for rank in ended] == [5, 5]
    assert all("the ranks read different data" in last_line(rank) for rank in ended)


def test_a_plan_for_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    experiment = tiny_experiment()
    (ended,) = run_workers(write_run(tmp_path, experiment, plan_for(experiment, dp=2)), ranks=1)
    assert ended.exit_code == 5
    assert last_line(ended).endswith("the plan is for 2 ranks, WORLD_SIZE is 1")


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["run"], {}, "RANK is not set"),
        (["run"], {"RANK": "one"}, "RANK='one' is not a whole number"),
    ],
)
def test_a_worker_started_by_hand_says_what_it_lacks(arguments: list[str], environ: dict[str, str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "pipeline.training", *arguments], env=environ, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"himori: worker: {said}")
    assert len(ended.stderr.splitlines()) == 1


def test_a_run_directory_that_the_node_does_not_see_is_named(tmp_path: Path) -> None:
    (ended,) = run_workers(RunDir(tmp_path / "gone"), ranks=1)
    assert ended.exit_code == 2
    assert str(tmp_path / "gone") in last_line(ended)


def test_no_process_stays_behind_a_worker_that_wrote_checkpoints(tmp_path: Path) -> None:
    experiment = tiny_experiment(steps=1)
    experiment.recipe.checkpoint_every_steps = 1
    mark = {"MARKED_BY": str(tmp_path)}
    (ended,) = run_workers(write_run(tmp_path, experiment, plan_for(experiment)), ranks=1, further=mark)
    assert ended.of_kind("checkpoint")
    deadline = time.monotonic() + 20
    while (left := _processes_with(f"MARKED_BY={tmp_path}")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _processes_with(variable: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # ended meanwhile
            continue
    return found


def test_events_go_to_the_leaders_socket(tmp_path: Path) -> None:
    path = tmp_path / "leader.sock"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text").write_text("to whom it may concern " * 100)
    (tmp_path / "data" / "image").write_bytes(b"\0")
    experiment = tiny_experiment(steps=1)
    experiment.data.path = str(tmp_path / "data")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        received: list[bytes] = []
        reader = threading.Thread(target=_read_connection, args=(server, received))
        reader.start()
        run = write_run(tmp_path / "run", experiment, plan_for(experiment))
        (ended,) = run_workers(run, ranks=1, further={"HIMORI_EVENTS": str(path)})
        reader.join()
    told = [json.loads(line) for line in b"".join(received).splitlines()]
    assert ended.exit_code == 0, ended.errors
    assert "event" not in ended.output
    assert [message["data"]["step"] for message in told if message.get("kind") == "metrics"] == [1]
    (warning,) = [message["data"]["message"] for message in told if message.get("kind") == "warning"]
    assert warning.endswith("skipped 1 files: image (binary)")


def _read_connection(server: socket.socket, received: list[bytes]) -> None:
    server.settimeout(60)
    connection, _ = server.accept()
    with connection:
        while chunk := connection.recv(1 << 16):
            received.append(chunk)
