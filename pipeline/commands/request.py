"""From overrides to the whole request: what `plan` prints and `submit` executes, and the files that hold it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.calibration_files import find_calibration
from pipeline.code_snapshot import read_code
from pipeline.config import Loaded, load
from pipeline.errors import ConfigError, PlanRefused
from pipeline.planning.data_paths import input_paths, with_paths
from pipeline.planning.job import Accept, Job
from pipeline.planning.plan import make_plan
from pipeline.planning.render import plan_text
from pipeline.rundir import RunDir, write_json, write_text, write_yaml
from pipeline.submission import job_script, prepare
from pipeline.tracking.provenance import collect_provenance, write_provenance
from pipeline.tracking.store import resolve_store
from pipeline.training.support import refuse_unsupported
from pipeline.types import Experiment, LauncherKind, Layout, Plan, Submission


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything decided about a run before it has a directory."""

    experiment: Experiment
    plan: Plan
    cluster_named: bool
    """Whether somebody chose the cluster; the default starts processes on this machine."""
    code_dir: Path
    """The snapshot of the code it runs; made when it is submitted."""

    def why_untrainable(self) -> str | None:
        """What of the request can be planned but not trained yet; None when all can, or nothing is to be."""
        if self.experiment.rehearsal:
            return None
        return _why_untrainable(self.experiment, self.plan.layout)

    def submission(self, run_dir: Path) -> Submission:
        """The exact request for a run in `run_dir`."""
        return prepare(
            self.experiment, self.plan, run_dir=str(run_dir), python=sys.executable, code_dir=str(self.code_dir)
        )

    def text(self, run_dir: Path) -> str:
        """The plan for people."""
        return self.text_of(self.submission(run_dir))

    def text_of(self, submission: Submission) -> str:
        """The plan for people, with the job script of a submission of it."""
        return plan_text(self.experiment, self.plan, submission, job_script(submission))


def load_experiment(arguments: argparse.Namespace) -> Loaded:
    """The experiment that was typed, its paths absolute; raises UserError."""
    strict = ["cluster.strict_profile=true"] if arguments.strict_profile else []
    loaded = load([*arguments.overrides, *strict], conf_dir=arguments.conf_dir)
    experiment = absolute(loaded.experiment, Path.cwd())
    resolve_store(experiment.tracking.uri, Path(experiment.run_root))  # a bad URI is found before anything is queued
    return dataclasses.replace(loaded, experiment=experiment)


def build_request(arguments: argparse.Namespace) -> Request:
    """Composes, checks and plans; nothing is written.

    Raises UserError or PlanRefused.
    """
    loaded = load_experiment(arguments)
    experiment = loaded.experiment
    run_root = Path(experiment.run_root)
    plan = make_plan(experiment, find_calibration(experiment.calibration, run_root), accept=trainable(experiment))
    return Request(
        experiment=experiment,
        plan=plan,
        cluster_named="cluster" in loaded.named_groups,
        code_dir=read_code().folder(run_root),
    )


def trainable(experiment: Experiment) -> Accept:
    """Tells which jobs of an experiment the training side of this version can run."""

    def accept(job: Job) -> bool:
        changed = dataclasses.replace(experiment, techniques=job.techniques, precision=job.precision)
        return _why_untrainable(changed, job.layout) is None

    return accept


def _why_untrainable(experiment: Experiment, layout: Layout) -> str | None:
    try:
        refuse_unsupported(experiment, layout)
    except PlanRefused as error:
        return str(error)
    return None


def check_place(request: Request) -> None:
    """What only matters where the run is to go, not where it is planned; raises ConfigError."""
    experiment, layout = request.experiment, request.plan.layout
    image = experiment.cluster.container.image or ""
    if image.startswith("/") and not Path(image).exists():
        raise ConfigError(f"cluster.container.image: {image} does not exist here; give an image that nodes see too")
    if experiment.cluster.launcher is not LauncherKind.local:
        return
    if layout.nodes > 1:
        raise ConfigError(f"nodes: {layout.nodes} can't run on this machine; give cluster=NAME of a Slurm cluster")
    for wanted in input_paths(experiment):
        if not Path(wanted.path).exists():
            raise ConfigError(f"{wanted.key}: {wanted.path} does not exist; give a path that the ranks can read")


def write_run(request: Request, run: RunDir) -> Submission:
    """Writes all that a run is before it is submitted; the submission last."""
    submission = request.submission(run.path)
    write_yaml(run.config_file, request.experiment)
    write_json(run.plan_file, request.plan)
    write_text(run.plan_text_file, request.text(run.path))
    write_provenance(run, collect_provenance(Path.cwd(), snapshot=request.code_dir.name))
    write_text(run.attempt(submission.attempt).job_script, job_script(submission), mode=0o600)
    write_json(run.submission_file, submission)
    return submission


def absolute(experiment: Experiment, cwd: Path) -> Experiment:
    """Paths as every node sees them, whatever directory its processes start in."""
    experiment = with_paths(experiment, lambda path: str(cwd / Path(path).expanduser()))
    run_root = str(cwd / Path(experiment.run_root).expanduser())
    calibration = experiment.calibration
    if calibration.endswith(".yaml"):
        calibration = str(cwd / Path(calibration).expanduser())
    return dataclasses.replace(experiment, run_root=run_root, calibration=calibration)
