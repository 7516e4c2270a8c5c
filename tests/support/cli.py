"""The command line as a user calls it, and what it leaves behind, read without himori's own code."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HIMORI = [sys.executable, "-P", "-m", "pipeline"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place to run: a cluster option and what it needs around it."""

    name: str
    run_root: Path
    overrides: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def himori(self, *arguments: str, check: bool = True, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Calls himori; run verbs get this site's run root."""
        done = subprocess.run(
            [*HIMORI, *arguments],
            env={**os.environ, "HIMORI_RUN_ROOT": str(self.run_root), **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"himori {' '.join(arguments)} -> {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def submit(self, *overrides: str) -> Run:
        """Submits the demo with changes."""
        arguments = ["submit", "--json", "experiment=demo", f"run_root={self.run_root}", *self.overrides, *overrides]
        document = json.loads(self.himori(*arguments).stdout)
        return Run(site=self, run_id=document["run_id"], path=Path(document["run_dir"]), job_id=document["job_id"])

    def end_everything(self) -> None:
        """Cancels what a failed test has left running."""
        for status in json.loads(self.himori("status", "--json").stdout):
            if status["state"] in ("HELD", "QUEUED", "RUNNING"):
                self.himori("cancel", status["run_id"])


@dataclass(frozen=True, kw_only=True)
class Run:
    """A submitted run."""

    site: Site
    run_id: str
    path: Path
    job_id: str

    def status(self) -> dict[str, Any]:
        """What `himori status --json` says."""
        document: list[dict[str, Any]] = json.loads(self.site.himori("status", "--json", self.run_id).stdout)
        return document[0]

    def wait(self, timeout_s: float = 240) -> int:
        """`himori wait`: its exit code."""
        return self.site.himori("wait", self.run_id, check=False, timeout=timeout_s).returncode

    def journal(self, attempt: int | str = 1) -> list[dict[str, Any]]:
        """All events of an attempt; of all attempts for `*`."""
        paths = sorted(self.path.glob(f"attempts/{attempt}/journal/*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def losses(self, attempt: int | str = 1) -> dict[int, float]:
        """Loss of each step."""
        steps = [event["data"] for event in self.journal(attempt) if event["kind"] == "metrics"]
        return {step["step"]: step["values"]["train/loss"] for step in steps}

    def wait_until_step(self, step: int, timeout_s: float = 180) -> None:
        """Until a step is in the journal of any attempt."""
        what = f"step {step} of {self.run_id}"
        wait_until(lambda: max(self.losses("*"), default=0) >= step or self.is_over(), timeout_s, what)

    def is_over(self) -> bool:
        """Whether its newest attempt has an end after which nothing comes."""
        ends = self.ends()
        newest = len(list(self.path.glob("attempts/*/handle.json")))
        return len(ends) == newest and bool(ends) and not ends[-1]["continues"]

    def ends(self) -> list[dict[str, Any]]:
        """The ends of all attempts that have one."""
        paths = sorted(self.path.glob("attempts/*/end.json"), key=lambda path: int(path.parent.name))
        return [json.loads(path.read_text())["data"] for path in paths]

    def wait_for_step(self, timeout_s: float = 120) -> None:
        """Until the first step is in the journal."""
        wait_until(lambda: bool(self.losses()), timeout_s, f"a step of {self.run_id}")

    def end(self) -> dict[str, Any]:
        """What end.json holds."""
        document: dict[str, Any] = json.loads((self.path / "attempts" / "1" / "end.json").read_text())["data"]
        return document

    def processes(self, module: str = "") -> list[int]:
        """Living processes of this run whose command names `module`."""
        return [pid for pid, command in all_commands() if self.run_id in command and module in command]

    def worker(self, rank: int) -> int:
        """Process id of one rank's worker."""
        (pid,) = (pid for pid in self.processes("pipeline.training") if environment_of(pid).get("RANK") == str(rank))
        return pid

    def supervisor(self, rank: int) -> int:
        """Process id of one rank's supervisor, the parent of its worker."""
        return parent_of(self.worker(rank))

    def assert_nothing_left(self, timeout_s: float = 30) -> None:
        """No process of the run lives on."""
        wait_until(lambda: not self.processes(), timeout_s, f"the processes of {self.run_id} to be gone")

    def mlflow(self) -> MlflowRun:
        """The run as MLflow's database holds it."""
        return read_mlflow(self.site.run_root / "mlflow.db", self.run_id)


@dataclass(frozen=True)
class MlflowRun:
    """One run in MLflow's database."""

    status: str
    tags: dict[str, str]
    losses: list[tuple[int, float]]
    """(step, value) as stored, doubles included."""


def read_mlflow(database: Path, run_id: str) -> MlflowRun:
    """The only MLflow run with the tag himori.run_id."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30) as store:
        ((uuid, status),) = store.execute(
            "select runs.run_uuid, status from runs join tags on tags.run_uuid = runs.run_uuid "
            "where tags.key = 'himori.run_id' and tags.value = ?",
            [run_id],
        ).fetchall()
        tags = dict(store.execute("select key, value from tags where run_uuid = ?", [uuid]).fetchall())
        losses = store.execute(
            "select step, value from metrics where run_uuid = ? and key = 'train/loss' order by step", [uuid]
        ).fetchall()
    store.close()
    return MlflowRun(status, tags, losses)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Polls until `condition` holds; fails naming `what` when it doesn't in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


def all_commands() -> list[tuple[int, str]]:
    """(pid, command line) of every process that is not a zombie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command:  # a zombie has none
                found.append((int(entry.name), command))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Environment a process was started with."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def parent_of(pid: int) -> int:
    """Parent of a process."""
    found = re.search(r"^PPid:\s+(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found
    return int(found[1])
