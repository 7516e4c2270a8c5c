"""Every key that chooses what is read, and what is held out, changes what is trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import data_probe
import pytest
from training_workers import plan_for

from pipeline.training.support import refuse_unsupported

Prints = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def prints(tmp_path_factory: pytest.TempPathFactory) -> Prints:
    program, folder = Path(data_probe.__file__), tmp_path_factory.mktemp("probe")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    found: Prints = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("key", data_probe.CASES)
def test_a_key_changes_what_is_trained_on(key: str, prints: Prints) -> None:
    without, with_it = prints[key]
    assert without != with_it


@pytest.mark.parametrize("key", data_probe.CASES)
def test_what_is_read_is_not_refused(key: str) -> None:
    for changes in ((data_probe.CASES[key][0],), data_probe.CASES[key]):
        experiment = data_probe.experiment_of(*changes)
        refuse_unsupported(experiment, plan_for(experiment).layout)
