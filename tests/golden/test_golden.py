"""What the cluster and people see, byte for byte: job scripts and plan texts.

`make golden` writes the files anew; the diff is to be read.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from launchers.slurm import submitit_parameters
from pipeline.calibration_files import shipped_calibration
from pipeline.config import load
from pipeline.planning.plan import make_plan
from pipeline.planning.render import plan_text
from pipeline.submission import as_part_of, job_script, logs_folder, prepare, python_command
from pipeline.types import Submission

FOLDER = Path(__file__).parent / "files"
RUN_DIR, PYTHON = "/shared/runs/20260131-120000-demo-a1b2c3", "/shared/env/bin/python"
CODE_DIR = "/shared/runs/code/0123456789abcdef"
BATCH_DIR = "/shared/runs/sweeps/demo-0123456789ab/batches/20260131-120000-a1b2c3"

CASES = {
    "demo_local": ["experiment=demo", "cluster=local"],
    "demo_dev": ["experiment=demo", "cluster=dev"],
    "slurm_site": [
        "experiment=demo",
        "cluster=slurm",
        "cluster.partition=gpu",
        "cluster.account=llm",
        "cluster.qos=high",
        "cluster.cpus_per_rank=8",
        "cluster.sbatch.constraint='h100&nvl'",
        "cluster.setup=['module load cuda/13']",
    ],
    "slurm_gpus": ["cluster=slurm", "hardware.gpus_per_node=8", "hardware.cpus_per_node=224", "nodes=2",
                   "recipe.global_batch=128"],
    "llama_h200": ["cluster=slurm", "hardware=dgx_h200", "model=llama3_8b", "precision=bf16", "nodes=2",
                   "recipe.sequence_length=8192", "recipe.micro_batch=1", "recipe.global_batch=128"],
    "slurm_gres": ["cluster=slurm", "cluster.gpu_dialect=gres", "hardware.gpus_per_node=4", "layout.tp=2"],
    "slurm_options": [
        "experiment=demo",
        "cluster=slurm",
        "cluster.reservation=seminar",
        "cluster.constraint='h100&nvl'",
        "cluster.exclude='n[7-9]'",
        "cluster.licenses=megatron:2",
        "cluster.mail_type=END",
        "cluster.mail_user=me@site",
        "cluster.nice=10",
        "cluster.segment=2",
        "cluster.gpu_type=h100",
        "hardware.gpus_per_node=4",
        "cluster.env.GREETING='it is $HOME; \"quoted\"'",
    ],
    "slurm_pyxis": ["experiment=demo", "cluster=slurm", "hardware.gpus_per_node=4", "data.path=/data/books",
                    "cluster.container={runtime: pyxis, image: /images/pytorch.sqsh, mounts: [/lustre, '/a:/b']}"],
    "slurm_apptainer": ["experiment=demo", "cluster=slurm",
                        "cluster.container={runtime: apptainer, image: /images/pytorch.sif}"],
}  # fmt: skip
SLURM_CASES = [name for name in CASES if name != "demo_local"]


def rendered(name: str) -> tuple[Submission, str]:
    """The submission and the plan text of a case."""
    experiment = load(CASES[name]).experiment
    plan = make_plan(experiment, shipped_calibration())
    submission = prepare(experiment, plan, run_dir=RUN_DIR, python=PYTHON, code_dir=CODE_DIR)
    return submission, plan_text(experiment, plan, submission, job_script(submission))


def compare(path: Path, text: str) -> None:
    """Compares with the golden file, or writes it when asked to."""
    if os.environ.get("HIMORI_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"differs from {path}; `make golden` if it is meant"


@pytest.mark.parametrize("name", CASES)
def test_job_script(name: str) -> None:
    compare(FOLDER / f"{name}.sh", job_script(rendered(name)[0]))


@pytest.mark.parametrize("name", CASES)
def test_plan_text(name: str) -> None:
    compare(FOLDER / f"{name}.txt", rendered(name)[1])


@pytest.mark.parametrize("name", SLURM_CASES)
def test_the_script_shown_is_the_one_submitit_writes(name: str) -> None:
    submission, _ = rendered(name)
    assert job_script(submission) == written(submission)


def written(submission: Submission, count: int | None = None) -> str:
    """The script as submitit writes it, for an array of `count`."""
    folder = logs_folder(submission)
    command = f"{python_command(submission)} -u -m submitit.core._submit {folder}"
    return str(_make_sbatch_string(command=command, folder=folder, map_count=count, **submitit_parameters(submission)))


@pytest.mark.parametrize(("count", "parallel"), [(1000, None), (37, 8)])
def test_the_script_of_an_array(count: int, parallel: int | None) -> None:
    submission = as_part_of(rendered("demo_dev")[0], batch_dir=BATCH_DIR, count=count, parallel=parallel)
    assert job_script(submission) == written(submission, count)
    compare(FOLDER / f"array_{count}.sh", job_script(submission))
