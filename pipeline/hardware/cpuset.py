"""What this process may use: CPUs and NUMA nodes by its affinity and by its cgroup, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipeline.hardware.topology import Ids, parse_ids
from pipeline.hardware.tree import Tree


@dataclass(frozen=True, slots=True)
class Allowance:
    """CPUs and NUMA nodes; None where the kernel doesn't say."""

    cpus: Ids | None
    mems: Ids | None


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a cgroup hierarchy is mounted, and which part of it."""

    root: str
    point: str


def allowance_of_status(tree: Tree) -> Allowance:
    """By /proc/self/status: affinity, and the nodes the cpuset leaves."""
    fields = dict(line.split(":", 1) for line in (tree.text("proc/self/status") or "").splitlines() if ":" in line)
    cpus, mems = fields.get("Cpus_allowed_list"), fields.get("Mems_allowed_list")
    return Allowance(None if cpus is None else parse_ids(cpus), None if mems is None else parse_ids(mems))


def allowance_of_cgroup(tree: Tree) -> Allowance:
    """By the cpuset of the nearest cgroup that has one; an affinity may be widened up to it, never beyond."""
    for folder in _cgroup_folders(tree):
        cpus = _first_ids(tree, folder, ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"))
        mems = _first_ids(tree, folder, ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"))
        if cpus:
            return Allowance(cpus, mems or None)
    return Allowance(None, None)


def _first_ids(tree: Tree, folder: PurePosixPath, names: tuple[str, ...]) -> Ids | None:
    return next((ids for name in names if (ids := tree.ids(str(folder / name)))), None)


def _cgroup_folders(tree: Tree) -> Iterator[PurePosixPath]:
    """The process' own cgroup and those above it, as far as they are mounted here."""
    version_1 = _own_path(tree, is_cpuset=True)
    path = version_1 if version_1 is not None else _own_path(tree, is_cpuset=False)
    mount = _mount(tree, "cgroup2" if version_1 is None else "cgroup")
    if path is None or mount is None:
        return
    folder = PurePosixPath(mount.point) / path.removeprefix(mount.root.rstrip("/")).lstrip("/")
    while True:
        yield folder
        if folder == PurePosixPath(mount.point):
            return
        folder = folder.parent


def _own_path(tree: Tree, *, is_cpuset: bool) -> str | None:
    """From lines `id:controllers:path`; version 2 has no controllers there."""
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpuset" in controllers.split(",")) if is_cpuset else controllers == "":
            return path
    return None


def _mount(tree: Tree, kind: str) -> _Mount | None:
    for line in (tree.text("proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        file_system, _, options = right.split(" ", 2)
        if file_system == kind and (kind == "cgroup2" or "cpuset" in options.split(",")):
            root, point = left.split(" ")[3:5]
            return _Mount(root, point)
    return None
