"""Copies on a node's own disk."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.datasets import staging
from pipeline.datasets.indexed import open_indexed, write_indexed
from pipeline.datasets.staging import stage
from pipeline.errors import DataError


def dataset(folder: Path, name: str = "data", start: int = 0) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    prefix = str(folder / name)
    write_indexed(prefix, [range(start, start + 50)] * 20, np.uint16)
    return prefix


def copies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def ask(prefix: str, folder: Path, results: multiprocessing.SimpleQueue[tuple[str, float]]) -> None:
    staged = stage(prefix, folder)
    results.put((staged.prefix, staged.seconds))


def test_all_processes_of_a_node_read_one_copy_that_one_of_them_made(tmp_path: Path) -> None:
    prefix, folder = dataset(tmp_path / "shared"), tmp_path / "local"
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    asking = [context.Process(target=ask, args=(prefix, folder, results)) for _ in range(4)]
    for process in asking:
        process.start()
    found = [results.get() for _ in asking]
    for process in asking:
        process.join()
    assert len({copy for copy, _ in found}) == 1
    assert sum(seconds > 0 for _, seconds in found) == 1
    assert np.array_equal(open_indexed(found[0][0]).tokens, open_indexed(prefix).tokens)
    assert len(copies(folder)) == 1


def test_a_copy_broken_off_is_made_again_and_a_changed_source_is_another(tmp_path: Path) -> None:
    prefix, folder = dataset(tmp_path / "shared"), tmp_path / "local"
    first = stage(prefix, folder)
    (Path(first.prefix).parent / "himori-staged.json").unlink()
    Path(f"{first.prefix}.bin").write_bytes(b"half")
    again = stage(prefix, folder)
    assert (again.prefix, again.seconds > 0) == (first.prefix, True)
    assert len(open_indexed(again.prefix).tokens) == 1000
    dataset(tmp_path / "shared", start=7)
    assert stage(prefix, folder).prefix != first.prefix


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    prefix = dataset(tmp_path / "shared")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data.stage_dir: .*file.*can't be copied there"):
        stage(prefix, tmp_path / "file" / "below")


def test_only_own_copies_that_nobody_reads_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    held = stage(dataset(tmp_path / "shared", "held"), folder)
    left = stage(dataset(tmp_path / "shared", "left", start=3), folder)
    os.close(left.held)
    (folder / "himori-of-somebody-else").mkdir()
    (folder / "precious").mkdir()
    with pytest.raises(DataError, match="GB free"):
        staging._make_room(folder, 1 << 60)
    assert Path(held.prefix).parent.exists()
    assert not Path(left.prefix).parent.exists()
    assert (folder / "himori-of-somebody-else").exists()
    assert (folder / "precious").exists()
