"""Plan -> Submission, and the text of the job script: the exact request, built whole before anything happens.

The script is rendered here and compared with what submitit wrote when the job is submitted, so `plan` shows the
very bytes that will run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from pipeline.errors import UserError
from pipeline.types import Cluster, Experiment, GpuDialect, LauncherKind, Plan, Submission

_NEVER = frozenset({"array", "error", "ntasks", "requeue", "wrap", "parsable", "test-only", "wait", "chdir"})
"""sbatch options that would change what a run is: where it writes, how many tasks it has, when it starts."""

SIGNAL_LEAD_S = 90
"""Seconds before the time limit at which Slurm sends SIGUSR2 to the ranks; less for jobs of a few minutes."""


def prepare(
    experiment: Experiment, plan: Plan, *, run_dir: str, python: str, attempt: int = 1, steps: int | None = None
) -> Submission:
    """The request for one attempt of a run; `run_dir` and `python` are absolute paths as the nodes see them.

    `steps` is where a run that is resumed goes on to, if not to the steps of its recipe.

    Raises UserError for an sbatch option or a path that can't stand in a job script.
    """
    cluster = experiment.cluster
    if re.search(r"[%\n\\]", run_dir):  # Slurm reads % and \ in the names of output files as patterns
        raise UserError(f"run_root: {run_dir!r} holds a character that Slurm reads as a pattern; name another folder")
    run_id = run_dir.rstrip("/").rsplit("/", 1)[-1]
    submission = Submission(
        launcher=cluster.launcher,
        job_name=f"himori-{experiment.name}",
        comment=comment_for(run_id),
        run_dir=run_dir,
        attempt=attempt,
        nodes=plan.layout.nodes,
        ranks_per_node=plan.layout.ranks_per_node,
        python=cluster.python or python,
        time_limit_min=cluster.time_limit_min,
        setup=_setup(cluster),
        sbatch=(),
        srun=(),
        steps=steps,
    )
    if cluster.launcher is LauncherKind.local:
        return submission
    return _with_slurm(submission, cluster, plan)


def comment_for(run_id: str) -> str:
    """The comment that ties a job in the queue to its run."""
    return f"himori:{run_id}"


def signal_lead_s(submission: Submission) -> int:
    """How long before its time limit a job is given notice, seconds."""
    return min(SIGNAL_LEAD_S, 60 * submission.time_limit_min // 4)


def logs_folder(submission: Submission) -> str:
    """The folder submitit is given: its pickle, its copy of the script and what the launcher itself prints."""
    return f"{submission.run_dir}/attempts/{submission.attempt}/logs"


def python_command(submission: Submission) -> str:
    """The interpreter as a shell command, in safe-path mode: the working directory can't shadow our packages."""
    return f"{shlex.quote(submission.python)} -P"


def job_script(submission: Submission) -> str:
    """The text of the attempt's job script."""
    match submission.launcher:
        case LauncherKind.slurm:
            return _slurm_script(submission)
        case LauncherKind.local:
            return _local_script(submission)


# --------------------------------------------------------------------------- Slurm


def _setup(cluster: Cluster) -> tuple[str, ...]:
    # submitit's own interpreter and everything it starts: no module is taken from the working directory.
    return ("export PYTHONSAFEPATH=1", *cluster.setup)


def _with_slurm(submission: Submission, cluster: Cluster, plan: Plan) -> Submission:
    return replace(
        submission,
        setup=(_END_TIME, *submission.setup),
        sbatch=_sbatch_options(submission, cluster, plan),
        srun=_srun_arguments(submission, plan),
        teardown=_teardown(submission),
    )


_END_TIME = (
    '[ -n "$SLURM_JOB_END_TIME" ] || '
    """export SLURM_JOB_END_TIME="$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)\""""
)
"""Slurm tells a job its end from 23.02 on; before that it is asked, so that no notice is mistaken for another."""


def _teardown(submission: Submission) -> tuple[str, ...]:
    """After srun, on the host: whether the job is queued again; the job's exit code stays srun's."""
    requeue = f"{python_command(submission)} -m launchers.requeue {shlex.quote(submission.run_dir)}"
    return ("himori_code=$?", requeue, "exit $himori_code")


def _sbatch_options(submission: Submission, cluster: Cluster, plan: Plan) -> tuple[tuple[str, str], ...]:
    options = {
        "comment": submission.comment,
        # Released once the handle is on disk: a killed `submit` leaves nothing that could start.
        "hold": "",
        "job-name": submission.job_name,
        # Also by Slurm itself, after a node failure: each start is an attempt that goes on from the newest checkpoint.
        "requeue" if cluster.max_attempts > 1 else "no-requeue": "",
        "nodes": str(submission.nodes),
        "ntasks-per-node": str(submission.ranks_per_node),
        "open-mode": "append",
        "output": f"{logs_folder(submission)}/%j_0_log.out",
        "signal": f"USR2@{signal_lead_s(submission)}",
        "time": str(submission.time_limit_min),
    }
    _check_free(cluster.sbatch, options)
    optional = {"partition": cluster.partition, "account": cluster.account, "qos": cluster.qos}
    options |= {key: value for key, value in optional.items() if value}
    if plan.cpus_per_rank:
        options["cpus-per-task"] = str(plan.cpus_per_rank)
    if cluster.exclusive:
        options["exclusive"] = ""
    if plan.gpus_per_node and cluster.request_gpus:
        options |= _gpu_option(cluster.gpu_dialect, plan.gpus_per_node)
    return tuple(sorted((options | cluster.sbatch).items()))


def _check_free(wanted: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raises UserError for an option that himori sets itself or that can't stand in a script."""
    taken = sorted((ours.keys() | _NEVER) & wanted.keys())
    if taken:
        raise UserError(
            f"cluster.sbatch.{taken[0]}: himori sets this itself; use its own key (see `himori plan --help`)"
        )
    for key, value in wanted.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise UserError(f"cluster.sbatch.{key}: not the long name of an sbatch option, e.g. mail-type")
        if "\n" in value or "\0" in value:
            raise UserError(f"cluster.sbatch.{key}: a line end can't stand in a job script; got {value!r}")


def _gpu_option(dialect: GpuDialect, gpus: int) -> dict[str, str]:
    match dialect:
        case GpuDialect.gpus_per_node:
            return {"gpus-per-node": str(gpus)}
        case GpuDialect.gres:
            return {"gres": f"gpu:{gpus}"}


def _srun_arguments(submission: Submission, plan: Plan) -> tuple[str, ...]:
    arguments = [
        # One file a node, not one a rank.
        f"--output={logs_folder(submission)}/%j_%N_srun.out",
        # The supervisors end the run together; this is the backstop should one of them be killed.
        "--kill-on-bad-exit=1",
        # Ranks fill a node before the next one: rank 0 is on the first host of the list.
        "--distribution=block:block",
        # himori binds each worker itself, to what the node really has.
        "--cpu-bind=none",
        "--mem-bind=none",
    ]
    if plan.cpus_per_rank:
        # srun of Slurm 22.05 and later doesn't take it over from sbatch.
        arguments.append(f"--cpus-per-task={plan.cpus_per_rank}")
    if plan.gpus_per_node:
        # Every rank sees all GPUs of the job: peer-to-peer needs it, the rank picks its own.
        arguments.append("--gpu-bind=none")
    return tuple(arguments)


def _slurm_script(submission: Submission) -> str:
    logs = logs_folder(submission)
    srun = shlex.join(["srun", "--unbuffered", "--output", f"{logs}/%j_%t_log.out", *submission.srun])
    return "\n".join(
        [
            "#!/bin/bash",
            "",
            "# Parameters",
            *(_sbatch_line(key, value) for key, value in submission.sbatch),
            "",
            "# setup",
            *submission.setup,
            "",
            "# command",
            "export SUBMITIT_EXECUTOR=slurm",
            f"{srun} {python_command(submission)} -u -m submitit.core._submit {shlex.quote(logs)}",
            "",
            "",
            "# teardown",
            *submission.teardown,
        ]
    )


def _sbatch_line(key: str, value: str) -> str:
    return f"#SBATCH --{key}={shlex.quote(value)}" if value else f"#SBATCH --{key}"


# --------------------------------------------------------------------------- local


def _local_script(submission: Submission) -> str:
    command = f"{python_command(submission)} -m launchers.local_session {shlex.quote(submission.run_dir)}"
    return "\n".join(["#!/bin/bash", "", "# setup", *submission.setup, "", "# command", f"exec {command}", ""])
