"""Tokenizers from local files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_tokenizers import TEXTS, write_bpe, write_ranks, write_tekken

from pipeline.datasets.tokenizer import open_tokenizer
from pipeline.errors import DataError, UserError


@pytest.mark.parametrize(
    ("write", "size", "end"),
    [(write_bpe, None, "<|end|>"), (write_ranks, 259, "<|endoftext|>"), (write_tekken, 259, "</s>")],
)
def test_text_comes_back(tmp_path: Path, write: Callable[[Path], Path], size: int | None, end: str) -> None:
    tokenizer = open_tokenizer(write(tmp_path), pattern="gpt2")
    encoded = tokenizer.encode(TEXTS)
    assert [tokenizer.decode(ids) for ids in encoded] == TEXTS
    assert max(max(ids) for ids in encoded) < tokenizer.vocab_size
    assert size in (None, tokenizer.vocab_size)
    assert tokenizer.end_of_text == tokenizer.id_of(end) is not None


def test_a_folder_and_its_file_are_the_same_tokenizer(tmp_path: Path) -> None:
    folder = write_bpe(tmp_path)
    one, other = open_tokenizer(folder), open_tokenizer(folder / "tokenizer.json")
    assert (one.digest, one.end_of_text) == (other.digest, other.end_of_text)
    assert one.digest != open_tokenizer(write_bpe(tmp_path / "other", vocab_size=260)).digest


def test_ranks_alone_do_not_say_how_text_is_cut(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--pattern"):
        open_tokenizer(write_ranks(tmp_path))
    digests = {open_tokenizer(tmp_path / "tiny.tiktoken", pattern=pattern).digest for pattern in ("gpt2", r"\S+|\s+")}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing/tokenizer.json", None, "is not a file"),
        ("tokenizer.json", b"", "is no JSON"),
        ("tokenizer.json", b"[]", "is no JSON object"),
        ("tokenizer.json", b'{"model": 1}', "is no tokenizer"),
        ("tekken.json", b'{"vocab": [], "config": {}}', "is no tekken.json"),
        ("x.tiktoken", b"", "is empty"),
        ("x.tiktoken", b"dGhl 0\nthe cat sat", "line 2 is no token"),
        ("x.tiktoken", b"dGhl 0\n!!! 1", "line 2 is no token"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        open_tokenizer(tmp_path / name, pattern="gpt2")
    assert str(tmp_path / name) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
