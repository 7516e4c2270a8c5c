"""Checkpoints on disk: whole or not at all, and never the last one away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checkpoints import (
    MANIFEST,
    Manifest,
    checkpoint_path,
    digest,
    newest_whole,
    prune,
    publish,
    read_manifest,
    share_of,
    steps_on_disk,
    superfluous,
    temporary_path,
)
from pipeline.errors import RunDirError
from pipeline.rundir import RunDir
from pipeline.types import Layout

LAYOUT = Layout(
    nodes=1,
    ranks_per_node=1,
    tp=1,
    pp=1,
    cp=1,
    dp=1,
    sequence_parallel=False,
    micro_batch=1,
    global_batch=1,
    num_microbatches=1,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "20260131-120000-demo-a1b2c3")


def save(run: RunDir, step: int, *, run_id: str | None = None, content: bytes = b"weights") -> Path:
    folder = temporary_path(run, step, 1)
    folder.mkdir(parents=True)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (folder / name).write_bytes(content)
    manifest = Manifest(
        run_id=run_id or run.run_id,
        attempt=1,
        step=step,
        consumed_samples=step,
        seed=1,
        data_digest="d",
        layout=LAYOUT,
        megatron_core="0",
        time=1.0,
        files=tuple(digest(path) for path in sorted(folder.iterdir())),
    )
    publish(run, folder, manifest)
    return checkpoint_path(run, step)


def test_what_was_published_is_the_newest(run: RunDir) -> None:
    assert newest_whole(run) is None
    save(run, 10)
    save(run, 20)
    assert steps_on_disk(run) == [20, 10]
    newest = newest_whole(run)
    assert newest is not None
    assert (newest.step, newest.bytes) == (20, 14)


@pytest.mark.parametrize("damage", ["missing", "short", "no-manifest", "torn-manifest"])
def test_a_torn_one_is_refused_saying_why_and_the_one_before_is_found(run: RunDir, damage: str) -> None:
    save(run, 10)
    torn = save(run, 20)
    file = torn / "__1_0.distcp"
    match damage:
        case "missing":
            file.unlink()
        case "short":
            file.write_bytes(b"weigh")
        case "no-manifest":
            (torn / MANIFEST).unlink()
        case "torn-manifest":
            (torn / MANIFEST).write_text((torn / MANIFEST).read_text()[:-30])
    with pytest.raises(RunDirError, match=r"step-00000020|manifest"):
        read_manifest(run, 20)
    newest = newest_whole(run)
    assert newest is not None
    assert newest.step == 10


def test_content_that_changed_has_another_digest(run: RunDir) -> None:
    path = save(run, 10) / "__0_0.distcp"
    stored = next(file for file in read_manifest(run, 10).files if file.name == path.name)
    assert digest(path) == stored
    path.write_bytes(b"weightz")
    assert digest(path) != stored


def test_a_half_written_one_is_none(run: RunDir) -> None:
    save(run, 10)
    folder = temporary_path(run, 20, 1)
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"wei")
    assert steps_on_disk(run) == [10]


def test_the_same_step_again_takes_the_place_of_the_old_one(run: RunDir) -> None:
    save(run, 10)
    save(run, 10, content=b"other weights")
    assert read_manifest(run, 10).bytes == 26
    assert not list(checkpoint_path(run, 10).parent.glob(".*"))


@given(
    steps=st.lists(st.integers(1, 500), unique=True),
    keep_last=st.integers(0, 5),
    keep_every=st.sampled_from([0, 1, 7, 50]),
)
def test_retention_keeps_the_newest_whatever_it_is_told(steps: list[int], keep_last: int, keep_every: int) -> None:
    gone = superfluous(steps, keep_last=keep_last, keep_every=keep_every)
    kept = set(steps) - set(gone)
    assert set(gone) <= set(steps)
    assert not steps or max(steps) in kept
    assert kept >= set(sorted(steps)[-keep_last:] if keep_last else [])
    assert not keep_every or not any(step % keep_every == 0 for step in gone)


def test_retention_touches_only_what_is_whole_and_of_this_run(run: RunDir) -> None:
    save(run, 10)
    foreign = save(run, 20, run_id="20260131-120000-other-ffffff")
    torn = save(run, 30)
    (torn / "__0_0.distcp").unlink()
    notes = checkpoint_path(run, 10).parent / "notes"
    notes.mkdir()
    own = [save(run, step) for step in (40, 50)]
    assert prune(run, keep_last=1, keep_every=0, attempt=1) == [40, 10]
    assert foreign.is_dir()
    assert torn.is_dir()
    assert notes.is_dir()
    assert not own[0].exists()
    assert own[1].is_dir()


def test_what_earlier_attempts_left_half_written_goes_and_what_this_one_writes_stays(run: RunDir) -> None:
    save(run, 10)
    for attempt in (1, 2):
        temporary_path(run, 20, attempt).mkdir()
    prune(run, keep_last=1, keep_every=0, attempt=2)
    assert not temporary_path(run, 20, 1).exists()
    assert temporary_path(run, 20, 2).exists()


def test_every_file_is_verified_by_one_rank(run: RunDir) -> None:
    save(run, 10)
    files = [replace(read_manifest(run, 10).files[0], name=f"f{i}", bytes=i) for i in range(11)]
    shares = [share_of(files, rank, 4) for rank in range(4)]
    assert sorted(file.name for share in shares for file in share) == sorted(file.name for file in files)
