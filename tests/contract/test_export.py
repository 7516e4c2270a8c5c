"""A run that was laid out, saved and exported: `transformers` computes the loss that the run reported."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import exported_loss
import numpy as np
import pytest
from support.cli import Run, Site

from pipeline.datasets.indexed import write_indexed

STEPS = 3
SHAPE = (
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.vocab_size=256",
    "recipe.sequence_length=16",
    "recipe.micro_batch=2",
    "recipe.global_batch=8",
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("tokens") / "data"
    random = np.random.RandomState(3)
    write_indexed(str(prefix), [random.randint(0, 256, size=50) for _ in range(60)], np.uint16)
    return prefix


def finished(site: Site, tokens: Path, *overrides: str) -> Run:
    """A run whose last look at held-out data says how good the saved model is."""
    run = site.submit(
        *SHAPE,
        f"recipe.steps={STEPS}",
        f"recipe.checkpoint_every_steps={STEPS}",
        "recipe.eval_every=1",
        "recipe.eval_batches=1",
        "data=indexed",
        f"data.path={tokens}",
        "data.validation_fraction=0.2",
        "optimizer.lr=0.02",
        "optimizer.warmup_steps=1",
        *overrides,
    )
    assert run.wait() == 0, run.status()
    return run


def validation_loss(run: Run) -> float:
    values = [event["data"]["values"] for event in run.journal() if event["kind"] == "metrics"]
    return float(values[-1]["validation/loss"])


def exported(site: Site, run: Run, folder: Path) -> Path:
    done = site.himori("export", run.run_id, "-o", str(folder))
    assert f"step {STEPS} of {run.run_id}" in done.stdout
    return folder


def loss_of(folder: Path, tokens: Path) -> float:
    """What transformers says of the same held-out samples."""
    program = str(exported_loss.__file__)
    done = subprocess.run(
        [sys.executable, program, str(folder), str(tokens)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout))


def test_a_laid_out_run_is_exported_whole_and_tuned_on(local_site: Site, tokens: Path, tmp_path: Path) -> None:
    first = finished(local_site, tokens, "layout.tp=2", "layout.pp=2")
    base = exported(local_site, first, tmp_path / "base")
    assert math.isclose(loss_of(base, tokens), validation_loss(first), rel_tol=1e-5)
    refused = local_site.himori("export", first.run_id, "-o", str(base), check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    # The export is what the next run starts from, with adapters over two tensor-parallel ranks.
    adapters = ("recipe.lora.rank=4", "recipe.lora.alpha=8")
    tuned = finished(local_site, tokens, f"recipe.init_from={base}", *adapters, "ranks=2", "layout.tp=2")
    merged = exported(local_site, tuned, tmp_path / "merged")
    assert validation_loss(tuned) < validation_loss(first)
    assert math.isclose(loss_of(merged, tokens), validation_loss(tuned), rel_tol=1e-5)
