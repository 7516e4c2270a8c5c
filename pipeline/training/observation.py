"""A rank looks at its own place: CPUs, memory policy, pages and GPU, as the kernel has them (standard library only)."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

from pipeline.hardware.memory_policy import get_policy
from pipeline.hardware.topology import parse_ids
from pipeline.placement.certificate import Applied, KernelMemory, Moment, Observation
from pipeline.rundir import from_jsonable, to_jsonable
from pipeline.training.context import WorkerContext
from pipeline.training.events import EventSink

_PROC_SELF = Path("/proc/self")
_PAGES = re.compile(r"\bN(\d+)=(\d+)")
_PAGE_KIB = re.compile(r"\bkernelpagesize_kB=(\d+)")
_POLICY_WORDS = {"prefer": "preferred", "prefer (many)": "preferred_many"}


def report_placement(context: WorkerContext, sink: EventSink, moment: Moment, *, gpu: str | None = None) -> None:
    """Tells the node's leader where this process is; `gpu` is the bus id of the GPU it computes on."""
    sink.emit("placement", to_jsonable(observe(context, moment, gpu=gpu)))


def observe(context: WorkerContext, moment: Moment, *, gpu: str | None = None, proc: Path = _PROC_SELF) -> Observation:
    """What this process finds out about itself; pages are looked for once the model is built."""
    return Observation(
        moment=moment,
        digest=context.binding_digest,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory=read_policy(proc),
        mems_allowed=_mems_allowed(proc),
        applied=from_jsonable(json.loads(context.applied), Applied) if context.applied else None,
        environment=dict(context.binding_variables),
        gpu=gpu,
        page_bytes=page_bytes(proc) if moment is Moment.model else None,
    )


def read_policy(proc: Path = _PROC_SELF) -> KernelMemory | None:
    """The memory policy of this process; where the system call is forbidden, that of its stack."""
    try:
        mode, nodes = get_policy()
    except OSError:
        return _policy_of_stack(proc)
    return KernelMemory(mode=mode, nodes=nodes)


def page_bytes(proc: Path = _PROC_SELF) -> dict[int, int] | None:
    """Bytes of this process on each NUMA node; None on a kernel that doesn't tell."""
    try:
        lines = (proc / "numa_maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found: Counter[int] = Counter()
    for line in lines:
        size = _PAGE_KIB.search(line)
        for node, pages in _PAGES.findall(line):
            found[int(node)] += int(pages) * 1024 * int(size[1] if size else 4)
    return dict(sorted(found.items()))


def _policy_of_stack(proc: Path) -> KernelMemory | None:
    """From a line such as `7ffc1000 prefer (many):0-1 stack anon=3 …`."""
    try:
        text = (proc / "numa_maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^\w+ ([a-z]+(?: \(many\))?)\S*?(?::([\d,-]+))? stack\b", text, re.M)
    if match is None:
        return None
    return KernelMemory(mode=_POLICY_WORDS.get(match[1], match[1]), nodes=parse_ids(match[2] or ""))


def _mems_allowed(proc: Path) -> tuple[int, ...] | None:
    try:
        text = (proc / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^Mems_allowed_list:\s*(\S*)$", text, re.M)
    return parse_ids(match[1]) if match else None
