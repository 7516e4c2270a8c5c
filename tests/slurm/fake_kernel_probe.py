"""Asks the kernel about places in every way that programs do, and prints what came of it as JSON."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.hardware.memory_policy import get_policy, set_policy

SHOW = """
import json, os
from pipeline.hardware.memory_policy import get_policy
print(json.dumps([sorted(os.sched_getaffinity(0)), get_policy()]))
"""


def main() -> None:
    """Prints what was found."""
    before = dict(os.environ)
    found = {**machine(), **refusals()}
    os.sched_setaffinity(0, {2, 3, 9})
    set_policy("preferred_many", [1, 0])
    found["own"] = [cpus(), get_policy()]
    found["child"] = child(before)
    found["thread"] = in_a_thread(before)
    found["after the thread"] = cpus()
    found |= another_process()
    found["status"] = allowed_lists("self")
    found["taskset"] = subprocess.getoutput("taskset -pc $$").rpartition(" ")[2]
    print(json.dumps(found))


def machine() -> dict[str, Any]:
    """Before anything was moved."""
    return {
        "count": os.cpu_count(),
        "start": cpus(),
        "nproc": subprocess.getoutput("nproc"),
        "cpus": Path("/sys/devices/system/cpu/online").read_text().strip(),
        "nodes": Path("/sys/devices/system/node/online").read_text().strip(),
    }


def refusals() -> dict[str, Any]:
    """Names of the errors of what can't be."""
    return {
        "unknown CPU": refused(os.sched_setaffinity, 0, {4000}),
        "unknown node": refused(set_policy, "bind", [40]),
        "no nodes": refused(set_policy, "bind", []),
    }


def refused(call: Callable[..., object], *arguments: object) -> str | None:
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def cpus(process: int = 0) -> list[int]:
    return sorted(os.sched_getaffinity(process))


def child(environment: Mapping[str, str]) -> Any:
    """What a process started from here with this environment finds."""
    command = [sys.executable, "-c", SHOW]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def in_a_thread(environment: Mapping[str, str]) -> list[Any]:
    """Places of a thread that moved away, and of its child."""
    found: list[Any] = []

    def run() -> None:
        os.sched_setaffinity(0, {5})
        found.extend((cpus(), child(environment)[0]))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def another_process() -> dict[str, Any]:
    """A process that was moved from outside, and one that is no more."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        os.sched_setaffinity(sleeper.pid, {7, 8})
        found = [cpus(sleeper.pid), allowed_lists(sleeper.pid)["Cpus_allowed_list"]]
        sleeper.kill()
    return {"other process": found, "nobody": refused(os.sched_getaffinity, sleeper.pid)}


def allowed_lists(process: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines) if key.endswith("_list")}


if __name__ == "__main__":
    main()
