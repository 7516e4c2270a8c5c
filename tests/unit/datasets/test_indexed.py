"""Megatron's indexed format, and what is said about files that are not it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.datasets.indexed import HEADER, check_indexed, open_indexed, token_type, write_indexed
from pipeline.datasets.samples import split_stream, stream_of_indexed
from pipeline.errors import DataError

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [], [7, 8, 9, 10]]


def written(folder: Path) -> str:
    prefix = str(folder / "data")
    write_indexed(prefix, DOCUMENTS, np.uint16)
    return prefix


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    documents=st.lists(st.lists(st.integers(0, 255), max_size=20), min_size=1, max_size=20),
    kind=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]),
)
def test_what_is_written_is_read(tmp_path: Path, documents: list[list[int]], kind: type[np.integer]) -> None:
    prefix = str(tmp_path / "data")
    write_indexed(prefix, documents, kind)
    data = open_indexed(prefix)
    check_indexed(data)
    assert [data.document(number).tolist() for number in range(data.document_count)] == documents
    assert data.tokens.dtype == kind


def test_small_vocabularies_take_two_bytes() -> None:
    assert (token_type(65499), token_type(65500)) == (np.uint16, np.int32)


def test_samples_overlap_by_one_token_and_know_their_documents(tmp_path: Path) -> None:
    stream = stream_of_indexed(open_indexed(written(tmp_path)), length=4, vocab_size=11)
    assert stream.samples == 2
    samples = [stream.read(number) for number in range(2)]
    assert [sample.tokens.tolist() for sample in samples] == [[1, 2, 3, 4, 5], [5, 6, 7, 8, 9]]
    assert [sample.documents.tolist() for sample in samples] == [[0, 0, 0, 1], [2, 2, 4, 4]]


@pytest.mark.parametrize(("size", "samples"), [(9, 1), (16, 1), (17, 2)])
def test_samples_share_one_token_with_their_neighbour(tmp_path: Path, size: int, samples: int) -> None:
    write_indexed(str(tmp_path / "d"), [range(size)], np.uint8)
    assert stream_of_indexed(open_indexed(str(tmp_path / "d")), length=8, vocab_size=256).samples == samples


@given(fraction=st.floats(0.05, 0.9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_held_out_documents_are_whole_and_nobody_trains_on_them(tmp_path: Path, fraction: float) -> None:
    documents = [[number] * 7 for number in range(100)]
    write_indexed(str(tmp_path / "d"), documents, np.uint8)
    stream = stream_of_indexed(open_indexed(str(tmp_path / "d")), length=3, vocab_size=100)
    parts = split_stream(stream, fraction)
    assert parts.held_out is not None
    seen = [{int(t) for n in range(p.samples) for t in p.read(n).tokens} for p in (parts.train, parts.held_out)]
    assert not seen[0] & seen[1]
    assert abs(parts.held_out.samples / (parts.train.samples + parts.held_out.samples) - fraction) < 0.05
    assert parts.train.digest != parts.held_out.digest


def test_a_part_without_a_sample_is_refused(tmp_path: Path) -> None:
    stream = stream_of_indexed(open_indexed(written(tmp_path)), length=4, vocab_size=11)
    with pytest.raises(
        DataError, match=r"data holds 4 tokens to hold out; one sample of recipe.sequence_length 4 needs 5"
    ):
        split_stream(stream, 0.5)


@pytest.mark.parametrize("wrong", [11, 60000])
def test_an_id_beyond_the_vocabulary_is_named_with_its_document(tmp_path: Path, wrong: int) -> None:
    write_indexed(str(tmp_path / "d"), [[1, 2, 3], [4, wrong, 5, 6, 7]], np.uint16)
    stream = stream_of_indexed(open_indexed(str(tmp_path / "d")), length=4, vocab_size=11)
    with pytest.raises(DataError, match=rf"d: document 1 holds token id {wrong}, model.vocab_size is 11"):
        stream.read(0)


def cut(suffix: str, size: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / f"data{suffix}"
        path.write_bytes(path.read_bytes()[:size])

    return damage


def patched(offset: int, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "data.idx"
        old = path.read_bytes()
        path.write_bytes(old[:offset] + content + old[offset + len(content) :])

    return damage


def removed(suffix: str) -> Callable[[Path], None]:
    return lambda folder: (folder / f"data{suffix}").unlink()


def looped(folder: Path) -> None:
    (folder / "data.bin").unlink()
    (folder / "data.bin").symlink_to(folder / "data.bin")


@pytest.mark.parametrize(
    ("damage", "file", "said"),
    [
        (removed(".idx"), "data.idx", "No such file"),
        (removed(".bin"), "data.bin", "No such file"),
        (looped, "data.bin", "Too many levels of symbolic links"),
        (cut(".idx", 0), "data.idx", "0 bytes, an index has at least 34"),
        (cut(".idx", 20), "data.idx", "20 bytes, an index has at least 34"),
        (cut(".idx", 60), "data.idx", "was cut short"),
        (cut(".idx", 141), "data.idx", "was cut short"),
        (cut(".bin", 0), "data.bin", "0 bytes, its index"),
        (cut(".bin", 19), "data.bin", "19 bytes, its index"),
        (patched(0, b"PK\3\4"), "data.idx", "is no index of Megatron"),
        (patched(9, b"\2"), "data.idx", "version 2"),
        (patched(17, b"\7"), "data.idx", "token type 7"),
        (patched(18, struct.pack("<Q", 1 << 60)), "data.idx", "was cut short"),
        (patched(HEADER.size + 60, struct.pack("<q", 3)), "data.idx", "documents don't cover"),
        (patched(HEADER.size + 28, struct.pack("<q", 2)), "data.idx", "sequence 1 starts at byte 2"),
        (patched(HEADER.size, struct.pack("<i", -3)), "data.idx", "sequence 0 has a length of -3"),
        (patched(HEADER.size + 76, struct.pack("<q", 0)), "data.idx", "document 1 ends before"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Callable[[Path], None], file: str, said: str) -> None:
    prefix = written(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError) as caught:
        check_indexed(open_indexed(prefix))
    assert str(tmp_path / file) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
