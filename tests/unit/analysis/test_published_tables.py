"""Tables of published results: what is read, and what is said of what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.analysis.published import SHIPPED, read_published
from pipeline.analysis.selection import select_runs
from pipeline.analysis.specs import gpu_named, model_named
from pipeline.conf_groups import options
from pipeline.errors import UserError

HEAD = "name,source,gpu,gpus,model,sequence_length,global_batch,step_s,notes\n"


def write(path: Path, text: str) -> Path:
    """A table."""
    path.write_text(text, encoding="utf-8")
    return path


def test_every_shipped_row_names_what_conf_has_and_its_source() -> None:
    """GPU, model and node type are known here, so that each can be planned and rerun."""
    rows = read_published(SHIPPED, gpu_named, model_named)
    assert len({row.name for row in rows}) == len(rows) > 20
    for row in rows:
        assert row.gpu is not None, row.name
        assert row.model is not None, row.name
        assert row.source
        assert row.tokens_per_s_per_gpu
        assert row.factors.get("platform") in (None, *options("hardware"))
        assert row.factors["precision"] in options("precision")


def test_a_rate_follows_from_the_step_time(tmp_path: Path) -> None:
    """Comments and empty cells are no values; a short name of a GPU is enough."""
    table = write(tmp_path / "mine.csv", f"# from a talk\n{HEAD}a,talk,B200,16,llama3_8b,4096,64,2.0,\n")
    (row,) = read_published(table, gpu_named, model_named)
    assert row.tokens_per_s_per_gpu == pytest.approx(4096 * 64 / 2.0 / 16)
    assert row.factors["gpu"] == "B200-SXM-180GB"
    assert "precision" not in row.factors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,source,gpu\nx,y,z\n", "column gpus is missing"),
        ("name,source,gpu,gpus,speed\nx,y,z,1,2\n", "column 'speed' is not known"),
        (f"{HEAD}a,talk,B200,many,,,,,\n", "mine.csv:2: gpus: 'many' is not a number"),
        (f"{HEAD}a,talk,B200,-8,,,,,\n", "mine.csv:2: gpus: '-8' is not a number above 0"),
        (f"# note\n{HEAD}a,,B200,8,,,,,\n", "mine.csv:3: source: is empty"),
    ],
)
def test_a_bad_table_is_named_by_line_and_column(text: str, said: str, tmp_path: Path) -> None:
    """One line that says where."""
    with pytest.raises(UserError, match=said):
        read_published(write(tmp_path / "mine.csv", text), gpu_named, model_named)


def test_selectors_of_tables(tmp_path: Path) -> None:
    """By pattern, or all of a file; what matches nothing is answered with what there is."""
    table = write(tmp_path / "mine.csv", f"{HEAD}a1,talk,B200,8,,,,,\na2,talk,B200,8,,,,,\n")
    assert [one.name for one in select_runs(f"{table}:a2", tmp_path)] == ["a2"]
    assert len(select_runs(str(table), tmp_path)) == 2
    assert len(select_runs("published:llama3-8b-fp8-*", tmp_path)) == 7
    with pytest.raises(UserError, match="no row matches 'b'; rows are a1, a2"):
        select_runs(f"{table}:b", tmp_path)
