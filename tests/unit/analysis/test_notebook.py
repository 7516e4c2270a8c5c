"""The example notebook runs from top to bottom, and was committed with its outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_runs import H100, make_run

nbformat = pytest.importorskip("nbformat", reason="the notebook's tools come with the dev extra")
nbclient = pytest.importorskip("nbclient", reason="the notebook's tools come with the dev extra")

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs" / "notebooks" / "comparing.ipynb"


def test_it_was_executed_without_an_error() -> None:
    """Every cell of code has a count and no traceback, and no path of a machine."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert "/home/" not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_it_runs(tmp_path: Path) -> None:
    """On other runs of the same names."""
    for seed in (1, 2, 3):
        make_run(tmp_path, H100, name="base", seed=seed, step_s=1.0 + seed / 100)
        make_run(tmp_path, [*H100, "layout.tp=8"], name="tp2", seed=seed, step_s=1.2 + seed / 100)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=120)
    client.execute(env={**os.environ, "HIMORI_RUN_ROOT": str(tmp_path)})
