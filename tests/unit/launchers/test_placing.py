"""A node's leader plans places on this very machine, and certifies what the ranks found."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from launchers.messages import Declined, Hello, Placed
from launchers.node_files import NodeFiles
from launchers.placing import NodePlacing
from pipeline.placement.certificate import Applied, KernelMemory, Moment, Observation
from pipeline.placement.environment import binding_environment
from pipeline.placement.policy import BindingPolicy, CpuPolicy
from pipeline.rundir import AttemptDir, RunDir, to_jsonable
from pipeline.types import HardwareProfile, NodeSpec

CPUS = tuple(sorted(os.sched_getaffinity(0)))
UNKNOWN = HardwareProfile(name="unknown")
OTHER = HardwareProfile(name="other", node_spec=NodeSpec(numa_nodes=[33, 66]))
DRIFT = "NUMA nodes with CPUs: expected 33 or 66, found"


class Node:
    """Two ranks of a run, the fourth and the fifth, with all CPUs of this machine."""

    def __init__(
        self,
        attempt: AttemptDir,
        policy: BindingPolicy,
        environ: dict[str, str],
        profile: HardwareProfile,
        strict: bool,
    ) -> None:
        self._attempt = attempt
        self._files = NodeFiles(attempt, "n1")
        self.placing = NodePlacing(
            "n1",
            files=self._files,
            policy=policy,
            profile=profile,
            is_strict=strict,
            uses_gpus=bool(environ),
            environ=environ,
        )
        hellos = [Hello(token="", rank=rank, local_rank=rank - 4, cpus=CPUS) for rank in (5, 4)]
        self.placed: dict[int, Placed] = asyncio.run(self.placing.place(hellos))

    def report(self, rank: int, moment: Moment, cpus: tuple[int, ...] | None = None) -> None:
        """What a rank in its place finds, or other CPUs."""
        placed = self.placed[rank]
        binding = placed.binding
        memory = KernelMemory(mode="preferred_many", nodes=binding.memory.nodes) if binding else None
        seen = Observation(
            moment=moment,
            digest=placed.digest,
            cpus=cpus or (binding.cpus if binding else CPUS),
            memory=memory,
            mems_allowed=(0,),
            applied=Applied(affinity=True, memory=memory, refused=()) if binding else None,
            environment={one.name: one.value for one in binding_environment(binding)} if binding else {},
        )
        self.placing.observe(rank, json.loads(json.dumps(to_jsonable(seen))))

    def close(self) -> None:
        """Writes what is queued."""
        assert self._files.close(timeout_s=10)

    def written(self) -> tuple[dict[str, Any] | None, list[dict[str, Any]], str]:
        """Certificate, journal and log."""
        self.close()
        path = self._attempt.binding("n1")
        certificate = json.loads(path.read_text())["data"] if path.exists() else None
        lines = self._attempt.journal("n1").read_text().splitlines()
        return certificate, [json.loads(line) for line in lines], self._attempt.log("n1").read_text()


class MakeNode(Protocol):
    def __call__(
        self,
        policy: BindingPolicy | None = None,
        environ: dict[str, str] | None = None,
        profile: HardwareProfile = UNKNOWN,
        strict: bool = False,
    ) -> Node: ...


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MakeNode]:
    """Makes nodes of one attempt below `tmp_path`; their files are closed in the end."""
    made: list[Node] = []

    def make(
        policy: BindingPolicy | None = None,
        environ: dict[str, str] | None = None,
        profile: HardwareProfile = UNKNOWN,
        strict: bool = False,
    ) -> Node:
        made.append(Node(RunDir(tmp_path).attempt(1), policy or BindingPolicy(), environ or {}, profile, strict))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_ranks_of_a_node_are_placed_by_one_plan(node: MakeNode) -> None:
    placed = node().placed
    assert sorted(placed) == [4, 5]
    assert len({one.digest for one in placed.values()} - {""}) == 1
    for rank, one in placed.items():
        assert one.binding
        assert (one.binding.rank, one.binding.local_rank) == (rank, rank - 4)
        assert set(one.binding.cpus) <= set(CPUS)


def test_the_certificate_is_written_when_the_last_rank_has_its_model(node: MakeNode, tmp_path: Path) -> None:
    one = node()
    for moment in Moment:
        one.report(4, moment)
    one.report(5, Moment.start)
    assert not RunDir(tmp_path).attempt(1).binding("n1").exists()
    one.report(5, Moment.model)
    one.report(5, Moment.model)
    one.placing.finish()
    certificate, journal, log = one.written()
    assert certificate
    assert ([rank["rank"] for rank in certificate["ranks"]], certificate["red"]) == ([4, 5], [])
    assert certificate["snapshot"]["allowed"]
    assert [event["kind"] for event in journal] == ["binding"]
    assert journal[0]["data"]["flags"] == certificate["flags"]
    assert "binding: rank 4  CPUs" in log


def test_a_rank_elsewhere_is_red_and_warned_of(node: MakeNode) -> None:
    one = node()
    for rank in (4, 5):
        one.report(rank, Moment.model, cpus=(1000,) if rank == 5 else None)
    certificate, journal, log = one.written()
    assert certificate
    assert certificate["red"] == [5]
    assert [(event["kind"], event["rank"]) for event in journal] == [("warning", 5), ("binding", None)]
    assert "rank 5 runs on CPUs 1000 instead of" in journal[0]["data"]["message"]
    assert "RED" in log


def test_ranks_that_end_early_are_certified_with_what_is_known(node: MakeNode) -> None:
    one = node()
    one.report(4, Moment.start)
    one.placing.decline(Declined(rank=5, reason="rank 5 stays where it is"))
    one.placing.finish()
    certificate, journal, _ = one.written()
    assert certificate
    assert {"DEGRADED", "UNBOUND"} <= set(certificate["flags"])
    assert [event["data"].get("message") for event in journal] == ["rank 5 stays where it is", None]
    assert certificate["ranks"][1]["environment"] == {}


def test_a_node_that_can_not_be_planned_runs_unbound_and_says_why(node: MakeNode) -> None:
    one = node(environ={"SLURM_STEP_GPUS": "77"})
    assert [placed.binding for placed in one.placed.values()] == [None, None]
    for rank in (4, 5):
        one.report(rank, Moment.model)
    certificate, journal, log = one.written()
    assert certificate
    assert (certificate["flags"], certificate["red"]) == (["UNBOUND"], [])
    assert [event["kind"] for event in journal] == ["warning", "binding"]
    assert "SLURM_STEP_GPUS=77: GPU 77 isn't here" in journal[0]["data"]["message"]
    assert "isn't here" in log


def test_leaked_variables_are_listed(node: MakeNode) -> None:
    one = node(environ={"SLURM_CPU_BIND": "quiet", "OMP_PLACES": "cores"})
    one.placing.finish()
    certificate, _, _ = one.written()
    assert certificate
    assert certificate["scrubbed"] == ["OMP_PLACES", "SLURM_CPU_BIND"]


def test_a_report_that_can_not_be_read_is_a_warning(node: MakeNode) -> None:
    one = node()
    one.placing.observe(4, {"moment": "later"})
    _, journal, _ = one.written()
    assert [event["kind"] for event in journal] == ["warning"]


@pytest.mark.parametrize("policy", CpuPolicy)
def test_every_policy_is_obeyed(node: MakeNode, policy: CpuPolicy) -> None:
    placed = node(BindingPolicy(cpus=policy)).placed
    flags = {flag.value for one in placed.values() if one.binding for flag in one.binding.flags}
    assert ("UNBOUND" in flags) == (policy is CpuPolicy.none)


def test_a_plan_that_changes_has_another_digest(node: MakeNode) -> None:
    one = node()
    plan = one.placing._plan
    other = replace(plan, bindings=tuple(reversed(plan.bindings)))
    assert (plan.digest == other.digest, len(plan.digest)) == (False, 16)


def test_a_node_that_is_not_as_expected_is_recorded_and_trains(node: MakeNode) -> None:
    one = node(profile=OTHER)
    assert one.placing.refusal is None
    for rank in (4, 5):
        one.report(rank, Moment.model)
    certificate, journal, log = one.written()
    assert certificate
    assert (certificate["profile"], certificate["drift"][0]["expected"]) == ("other", "33 or 66")
    assert journal[-1]["data"]["drift"][0].startswith(DRIFT)
    assert f"profile other: {DRIFT}" in log


def test_where_that_is_not_to_be_the_node_refuses_and_is_certified(node: MakeNode) -> None:
    one = node(profile=OTHER, strict=True)
    assert one.placing.refusal
    assert one.placing.refusal.startswith(f"n1 is not what profile other expects: {DRIFT}")
    certificate, journal, _ = one.written()
    assert certificate
    assert [event["kind"] for event in journal] == ["binding"]
    assert len(certificate["drift"]) == 1


def test_strictness_takes_what_is_as_expected_and_refuses_what_can_not_be_compared(node: MakeNode) -> None:
    assert node(strict=True).placing.refusal is None
    unreadable = node(environ={"SLURM_STEP_GPUS": "77"}, strict=True).placing.refusal
    assert unreadable
    assert "could not be compared with profile unknown" in unreadable
