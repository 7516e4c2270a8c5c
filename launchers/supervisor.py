"""The supervisor: one process a rank, without torch and mlflow, that starts the worker and outlives it.

`python -P -m launchers.supervisor RUN_DIR`, started by the dispatcher in every task of the job step.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launchers import shim
from launchers.attempts import begin_attempt, with_outlook
from launchers.beside import Beside
from launchers.job_hub import JobHub
from launchers.member import Member
from launchers.messages import LINE_LIMIT_BYTES
from launchers.node_files import NodeFiles
from launchers.node_hub import NodeHub
from launchers.placing import NodePlacing
from launchers.ports import candidate_ports, job_token, listen, node_socket_path
from launchers.task import Task, read_task
from launchers.watchdog import Watchdog
from launchers.worker_environment import deterministic_variables, profiler_prefix
from pipeline.containers import worker_python
from pipeline.errors import ClusterError, HimoriError
from pipeline.placement.policy import binding_policy
from pipeline.rundir import AttemptDir, RunDir, write_json
from pipeline.submission import signal_lead_s
from pipeline.tracking.records import current_record
from pipeline.types import Cause, End, Experiment, LauncherKind, RunState

HANDLE_WAIT_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Supervises the task this process is; the exit code of the task."""
    run = RunDir(Path((argv or sys.argv[1:])[0]))
    return_code = 1
    try:
        # A task whose launcher vanishes must not go on alone.
        shim.die_with_parent(signal.SIGTERM)
        task = read_task(os.environ)
        attempt = _confirmed_attempt(run, task)
        try:
            return_code = asyncio.run(Supervisor(run, attempt, task).run())
        finally:
            if task.is_job_leader:
                _store_record(run)
    except* HimoriError as errors:
        for error in errors.exceptions:
            print(f"himori: {error}", file=sys.stderr, flush=True)
    return return_code


def _store_record(run: RunDir) -> None:
    """Puts predicted beside measured; whoever looks later does it again where other nodes' journals have grown."""
    try:
        current_record(run)
    except (HimoriError, OSError) as error:
        print(f"himori: no record of the run yet: {error}", file=sys.stderr, flush=True)


def _confirmed_attempt(run: RunDir, task: Task) -> AttemptDir:
    """The attempt this job is; a job whose submission was never completed must not train."""
    deadline = time.monotonic() + HANDLE_WAIT_S
    while time.monotonic() < deadline:
        first = run.read_submission().attempt if run.submission_file.exists() else 0
        handle = run.attempt(first).read_handle() if first else None
        if handle:
            expected = handle.job_id if task.launcher is handle.launcher else None
            if task.launcher.name == "slurm" and expected != task.job_id:
                raise ClusterError(f"run {run.run_id} belongs to job {expected}, this is job {task.job_id}")
            if task.is_job_leader:
                return begin_attempt(run, first=first, restarts=task.restarts)
            return run.attempt(first + task.restarts)
        time.sleep(0.2)
    raise ClusterError(f"run {run.run_id} was never submitted completely; cancel this job and submit again")


class Supervisor:
    """One task's roles: always a member, a node's leader in the node's first task, the job's leader in rank 0."""

    def __init__(self, run: RunDir, attempt: AttemptDir, task: Task) -> None:
        self._run = run
        self._attempt = attempt
        self._task = task
        self._experiment: Experiment = run.read_experiment()
        self._began = time.time()
        self._token = job_token(run.run_id, attempt.number, task.job_id)
        self._ports = candidate_ports(self._token)
        self._master: socket.socket | None = None

    async def run(self) -> int:
        """Plays all roles of this task to their end."""
        cluster, task = self._experiment.cluster, self._task
        socket_path = node_socket_path(self._token, task.node)
        member = Member(
            task,
            run_dir=self._run.path,
            attempt=self._attempt.number,
            token=self._token,
            python=worker_python(self._experiment, run_dir=str(self._run.path), own=sys.executable),
            variables=deterministic_variables() if self._experiment.recipe.deterministic else (),
            prefix=profiler_prefix(self._experiment.profile, self._attempt, task),
        )
        _on_signals(member.signalled)
        timeout_s = cluster.rendezvous_timeout_s
        async with asyncio.TaskGroup() as roles:
            if task.is_node_leader:
                roles.create_task(self._lead_node(socket_path, timeout_s))
            if task.is_job_leader:
                roles.create_task(self._lead_job(timeout_s))
            rank = roles.create_task(member.run(socket_path, master=lambda: self._master, connect_timeout_s=timeout_s))
        return rank.result()

    async def _lead_node(self, socket_path: Path, timeout_s: float) -> None:
        files = NodeFiles(self._attempt, self._task.node)
        hub = NodeHub(
            self._task,
            token=self._token,
            files=files,
            placing=self._placing(files),
            sampler=self._sampler(),
            watchdog=Watchdog(self._attempt, self._task.node),
        )
        try:
            await hub.run(socket_path, ports=self._ports, timeout_s=timeout_s)
        finally:
            files.close(timeout_s=10)
            with contextlib.suppress(OSError):
                socket_path.parent.rmdir()

    def _placing(self, files: NodeFiles) -> NodePlacing:
        experiment = self._experiment
        return NodePlacing(
            self._task.node,
            files=files,
            policy=binding_policy(experiment.cluster, experiment.hardware),
            profile=experiment.hardware,
            is_strict=experiment.cluster.strict_profile,
            uses_gpus=self._run.read_plan().gpus_per_node > 0,
            environ=dict(os.environ),
        )

    async def _lead_job(self, timeout_s: float) -> None:
        try:
            await self._lead_to_the_end(timeout_s)
        except HimoriError as error:
            end = End(state=RunState.failed, message=str(error), first=None, time=time.time(), cause=Cause.unknown)
            write_json(self._attempt.end_file, end)
            raise

    async def _lead_to_the_end(self, timeout_s: float) -> None:
        task = self._task
        listener, _ = listen(self._ports, loopback=task.nodes == 1)
        self._master, port = listen(self._ports, loopback=task.nodes == 1)
        hub = JobHub(
            task,
            token=self._token,
            cancel_asked=self._attempt.cancel_file.exists,
            time_limit_at=self._time_limit_at(),
            notice_lead_s=signal_lead_s(self._run.read_submission()),
            save_s=self._experiment.cluster.checkpoint_grace_s,
        )
        server = await asyncio.start_server(hub.serve, sock=listener, limit=LINE_LIMIT_BYTES)
        # MLflow's client can block for minutes, so it lives in a process of its own, beside this one only.
        log = self._attempt.logs_dir / "sync.log"
        syncer = Beside("pipeline.tracking.sync", [str(self._run.path), "--follow"], log)
        await syncer.start()
        try:
            end = await hub.run(address=task.first_host, port=port, roll_call_s=timeout_s)
            end = with_outlook(self._run, self._attempt, end)
            # Slurm sends SIGTERM before it ends a job for good and before it starts it again.
            by_slurm = task.launcher is LauncherKind.slurm and hub.ended_by is signal.SIGTERM
            write_json(self._attempt.end_file, replace(end, decided_by_scheduler=by_slurm and not end.continues))
            code = 0 if end.state is RunState.finished else 1
            if code == 0:
                hub.dismiss(code)
            if not await syncer.wait(self._experiment.tracking.finish_timeout_s):
                print("himori: tracking is not complete; `himori sync` finishes it", file=sys.stderr, flush=True)
            # After a failure only now: the first task to leave with an error makes srun end all others.
            hub.dismiss(code)
        finally:
            server.close()

    def _time_limit_at(self) -> float:
        """When the time limit ends the job: Slurm says it from 23.02 on, before that it is reckoned from our start."""
        return self._task.end_time or self._began + 60 * self._experiment.cluster.time_limit_min

    def _sampler(self) -> Beside | None:
        """Watches this node's hardware; what it sees on rank 0's node becomes curves in MLflow."""
        every_s = self._experiment.tracking.telemetry_every_s
        if every_s <= 0:
            return None
        arguments = [str(self._attempt.path), self._task.node, "--every-s", str(every_s)]
        arguments += ["--as-curves"] * self._task.is_job_leader
        log = self._attempt.logs_dir / f"telemetry-{self._task.node}.log"
        return Beside("pipeline.tracking.telemetry.sampler", arguments, log)


def _on_signals(told: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        loop.add_signal_handler(number, told, int(number))


if __name__ == "__main__":
    sys.exit(main())
