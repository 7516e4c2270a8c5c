"""Plan -> Submission, and the text of the job script: the exact request, built whole before anything happens.

The script is rendered here and compared with what submitit wrote when the job is submitted, so `plan` shows the
very bytes that will run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from pipeline.containers import refuse_container, srun_options
from pipeline.errors import UserError
from pipeline.types import Cluster, ContainerRuntime, Experiment, GpuDialect, LauncherKind, Plan, Submission

_NEVER = frozenset({"array", "error", "ntasks", "requeue", "wrap", "parsable", "test-only", "wait", "chdir"})
"""sbatch options that would change what a run is: where it writes, how many tasks it has, when it starts."""

SIGNAL_LEAD_S = 90
"""Seconds before the time limit at which Slurm sends SIGUSR2 to the ranks; less for jobs of a few minutes."""


def prepare(
    experiment: Experiment,
    plan: Plan,
    *,
    run_dir: str,
    python: str,
    code_dir: str = "",
    attempt: int = 1,
    steps: int | None = None,
) -> Submission:
    """The request for one attempt of a run; the paths are absolute, as the nodes see them.

    `steps` is where a run that is resumed goes on to, if not to the steps of its recipe.

    Raises UserError for an sbatch option or a path that can't stand in a job script.
    """
    cluster = experiment.cluster
    if re.search(r"[%\n\\]", run_dir):  # Slurm reads % and \ in the names of output files as patterns
        raise UserError(f"run_root: {run_dir!r} holds a character that Slurm reads as a pattern; name another folder")
    refuse_container(cluster)
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
        task_python=_task_python(cluster),
        time_limit_min=cluster.time_limit_min,
        setup=_setup(cluster, code_dir),
        sbatch=(),
        srun=(),
        code_dir=code_dir,
        steps=steps,
    )
    if cluster.launcher is LauncherKind.local:
        return submission
    return _with_slurm(submission, experiment, plan)


def as_part_of(submission: Submission, *, batch_dir: str, count: int, parallel: int | None) -> Submission:
    """The request for the job array of a batch of `count` runs that ask for the same; `index` is still to be set."""
    array = f"0-{count - 1}" + (f"%{parallel}" if parallel else "")
    part = replace(submission, batch_dir=batch_dir, comment=comment_for(batch_dir.rsplit("/", 1)[-1]))
    if submission.launcher is LauncherKind.local:
        return part
    options = dict(submission.sbatch) | {
        "array": array,
        "comment": part.comment,
        "output": f"{logs_folder(part)}/%A_%a_0_log.out",
    }
    srun = (f"--output={logs_folder(part)}/%A_%a_%N_srun.out", *submission.srun[1:])
    teardown = _teardown(part, f'"$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {shlex.quote(runs_file(batch_dir))})"')
    return replace(part, sbatch=tuple(sorted(options.items())), srun=srun, teardown=teardown)


def runs_file(batch_dir: str) -> str:
    """Where the batch script of an array finds its own run: a run directory a line, in the order of the indices."""
    return f"{batch_dir}/runs"


def resources(submission: Submission) -> tuple[object, ...]:
    """What has to be equal for runs to share a job array: all but what names the single run."""
    of_the_run = {"comment", "output"}
    sbatch = tuple(item for item in submission.sbatch if item[0] not in of_the_run)
    return (sbatch, submission.srun[1:], submission.setup, submission.python, submission.task_python)


def comment_for(run_id: str) -> str:
    """The comment that ties a job in the queue to its run."""
    return f"himori:{run_id}"


def signal_lead_s(submission: Submission) -> int:
    """How long before its time limit a job is given notice, seconds."""
    return min(SIGNAL_LEAD_S, 60 * submission.time_limit_min // 4)


def logs_folder(submission: Submission) -> str:
    """The folder submitit is given: its pickle, its copy of the script and what the launcher itself prints."""
    if submission.batch_dir:
        return f"{submission.batch_dir}/logs"
    return f"{submission.run_dir}/attempts/{submission.attempt}/logs"


def python_command(submission: Submission) -> str:
    """A task's interpreter as a shell command, in safe-path mode: the working directory can't shadow our packages."""
    return f"{shlex.quote(submission.task_python or submission.python)} -P"


def job_script(submission: Submission) -> str:
    """The text of the attempt's job script."""
    match submission.launcher:
        case LauncherKind.slurm:
            return _slurm_script(submission)
        case LauncherKind.local:
            return _local_script(submission)


# --------------------------------------------------------------------------- Slurm


def _task_python(cluster: Cluster) -> str:
    """The interpreter inside the image, where whole tasks run there."""
    if cluster.container.runtime is ContainerRuntime.pyxis:
        return cluster.container.python
    return ""


def _setup(cluster: Cluster, code_dir: str) -> tuple[str, ...]:
    lines = [
        # submitit's own interpreter and everything it starts: no module is taken from the working directory.
        "export PYTHONSAFEPATH=1"
    ]
    if code_dir:
        # The job runs what was submitted, whatever becomes of the checkout while it waits.
        lines.append(f"export PYTHONPATH={shlex.quote(code_dir)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return (*lines, *(_export(name, value) for name, value in cluster.env.items()), *cluster.setup)


def _export(name: str, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UserError(f"cluster.env.{name}: not the name of an environment variable")
    if re.search(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_KEY", name, re.IGNORECASE):
        raise UserError(
            f"cluster.env.{name}: looks like a secret, which would be written into scripts and run directories; "
            "set it in the shell you submit from, jobs inherit it"
        )
    if "\n" in value or "\0" in value:
        raise UserError(f"cluster.env.{name}: a line end can't stand in a job script; got {value!r}")
    return f"export {name}={shlex.quote(value)}"


def _with_slurm(submission: Submission, experiment: Experiment, plan: Plan) -> Submission:
    return replace(
        submission,
        setup=(_END_TIME, *submission.setup),
        sbatch=_sbatch_options(submission, experiment.cluster, plan),
        srun=(*_srun_arguments(submission, plan), *srun_options(experiment, run_dir=submission.run_dir)),
        teardown=_teardown(submission, shlex.quote(submission.run_dir)),
    )


_END_TIME = (
    ': "${SLURM_JOB_END_TIME:=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)}"; '
    "export SLURM_JOB_END_TIME"
)
"""Slurm tells a job its end from 23.02 on; before that it is asked, so that no notice is mistaken for another."""


def _teardown(submission: Submission, run_dir: str) -> tuple[str, ...]:
    """After srun, on the host: whether the job is queued again; the job's exit code stays srun's.

    `run_dir` is a word of the shell.
    """
    requeue = f"{shlex.quote(submission.python)} -P -m launchers.requeue {run_dir}"
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
    options |= {key: str(value) for key, value in _site_options(cluster).items() if value is not None}
    _check_free(cluster.sbatch, options)
    for key, value in options.items():
        _check_value(key.replace("job-name", "name"), value)
    if plan.cpus_per_rank:
        options["cpus-per-task"] = str(plan.cpus_per_rank)
    if cluster.exclusive:
        options["exclusive"] = ""
    if plan.gpus_per_node and cluster.request_gpus:
        options |= _gpu_option(cluster, plan.gpus_per_node)
    return tuple(sorted((options | cluster.sbatch).items()))


def _site_options(cluster: Cluster) -> dict[str, str | int | None]:
    """What the site's own keys ask of sbatch."""
    return {
        "account": cluster.account,
        "constraint": cluster.constraint,
        "exclude": cluster.exclude,
        "licenses": cluster.licenses,
        "mail-type": cluster.mail_type,
        "mail-user": cluster.mail_user,
        "nice": cluster.nice,
        "nodelist": cluster.nodelist,
        "partition": cluster.partition,
        "qos": cluster.qos,
        "reservation": cluster.reservation,
        "segment": cluster.segment,
    }


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
        _check_value(f"cluster.sbatch.{key}", value)


def _check_value(key: str, value: str) -> None:
    """sbatch reads the quotes of its lines itself, a line at a time, and takes backslashes away even within them."""
    if re.search(r"[\n\r\0\\]", value):
        raise UserError(f"{key}: a line end or a backslash can't stand in an sbatch option; got {value!r}")


def _gpu_option(cluster: Cluster, gpus: int) -> dict[str, str]:
    asked = f"{cluster.gpu_type}:{gpus}" if cluster.gpu_type else str(gpus)
    match cluster.gpu_dialect:
        case GpuDialect.gpus_per_node:
            return {"gpus-per-node": asked}
        case GpuDialect.gres:
            return {"gres": f"gpu:{asked}"}


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
    job = "%A_%a" if submission.batch_dir else "%j"
    srun = shlex.join(["srun", "--unbuffered", "--output", f"{logs}/{job}_%t_log.out", *submission.srun])
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
