"""Conversations: which tokens they become, which are learnt, how they share rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import write_bpe

from pipeline.datasets.chat import open_conversations, open_encoder
from pipeline.datasets.packing import pack
from pipeline.datasets.tokenizer import open_tokenizer
from pipeline.errors import DataError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITING = "{% for m in messages %}{{ messages | length }}{{ m.content }}{% endfor %}"
TALK = [
    {"role": "system", "content": "be 火守"},
    {"role": "user", "content": "the cat?"},
    {"role": "assistant", "content": "Ærlig, the mat"},
    {"role": "user", "content": "a dog?"},
    {"role": "assistant", "content": "no"},
]


def write_chat(path: Path, *conversations: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in conversations))
    return path


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (None, "Ærlig, the mat<|end|>\nno<|end|>\n"),
        (CHATML, "Ærlig, the mat<|im_end|>\nno<|im_end|>\n"),
    ],
)
def test_only_what_the_assistant_says_is_learnt(tmp_path: Path, template: str | None, answers: str) -> None:
    folder = write_bpe(tmp_path, template=template)
    tokenizer, one = open_tokenizer(folder), open_encoder(folder).encode(TALK)
    whole = tokenizer.decode(one.tokens.tolist())
    assert whole.count("火守") == whole.count("a dog?") == 1
    assert tokenizer.decode(one.tokens[one.said].tolist()) == answers


def test_rows_hold_whole_conversations_apart(tmp_path: Path) -> None:
    folder = write_bpe(tmp_path)
    path = write_chat(tmp_path / "chat.jsonl", *[TALK[1:3], TALK[3:], TALK] * 4)
    train = open_conversations(path, folder, 0.0, 100, 400).train
    encoder = open_encoder(folder)
    wanted = sorted(encoder.encode(one).tokens.tolist() for one in [TALK[1:3], TALK[3:], TALK] * 4)
    found = []
    for number in range(train.samples):
        sample = train.read(number)
        assert sample.targets is not None
        assert (len(sample.tokens), len(sample.documents), len(sample.targets)) == (101, 100, 100)
        row = train.rows[number]  # type: ignore[attr-defined]
        for order in range(len(row)):
            found.append(sample.tokens[:-1][sample.documents == order].tolist())
        # Nobody learns to begin a conversation from the end of another one, or to fill a row up.
        last_of_each = np.flatnonzero(np.diff(sample.documents, append=sample.documents[-1]))
        assert not sample.targets[last_of_each].any()
        assert not sample.targets[sample.documents == len(row)].any()
    assert sum(map(len, found)) >= sum(map(len, wanted)) - train.samples
    assert train.samples < 12


def test_held_out_conversations_are_others(tmp_path: Path) -> None:
    folder = write_bpe(tmp_path)
    talks = [[TALK[1], {"role": "assistant", "content": f"number {number}"}] for number in range(10)]
    parts = open_conversations(write_chat(tmp_path / "chat.jsonl", *talks), folder, 0.3, 64, 400)
    assert parts.held_out is not None
    counts = [len(part.conversations) for part in (parts.train, parts.held_out)]  # type: ignore[attr-defined]
    assert counts == [7, 3]
    assert parts.train.digest != parts.held_out.digest


@given(lengths=st.lists(st.integers(1, 50), max_size=80), room=st.integers(50, 120))
def test_every_piece_is_packed_once_and_no_row_overflows(lengths: list[int], room: int) -> None:
    rows = pack(lengths, room=room)
    assert sorted(piece for row in rows for piece in row) == list(range(len(lengths)))
    assert all(sum(lengths[piece] for piece in row) <= room for row in rows)
    # No two rows could have been one, but for the last that was opened.
    assert len(rows) <= 2 * sum(lengths) / room + 1


GOOD = json.dumps({"messages": TALK}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (GOOD + b"\n{", "line 2:"),
        (GOOD + b"\n[]", "line 2: no list `messages`"),
        (GOOD + b"\n" + b'{"messages": []}', "line 2: no list `messages`"),
        (GOOD + b"\n\n" + b'{"messages": [{"role": "me", "content": "x"}]}', "line 3: message 1 has no role"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "line 1: message 1 has no role"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "line 1: 'utf-8' codec can't decode"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "no conversation to train on has an answer"),
    ],
)
def test_hostile_conversations_are_named_with_the_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "chat.jsonl").write_bytes(content)
    assert said in refusal(lambda: open_conversations(tmp_path / "chat.jsonl", write_bpe(tmp_path), 0.0, 64, 400))


def test_ids_beyond_the_vocabulary_are_named_with_the_line(tmp_path: Path) -> None:
    path = write_chat(tmp_path / "chat.jsonl", TALK)
    said = refusal(lambda: open_conversations(path, write_bpe(tmp_path), 0.0, 64, 100))
    assert f"{path}: line 1: token id" in said
    assert "model.vocab_size is 100" in said


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (REWRITING, "line 1: the chat template rewrites what stands before message"),
        ("{% for", "chat_template can't be read"),
        ("{{ raise_exception('only two turns') }}", "line 1: only two turns"),
        ("{{ messages.__class__.__mro__ }}", "line 1: access to attribute '__class__'"),
    ],
)
def test_templates_that_cannot_be_used_are_named(tmp_path: Path, template: str, said: str) -> None:
    path = write_chat(tmp_path / "chat.jsonl", TALK)
    assert said in refusal(lambda: open_conversations(path, write_bpe(tmp_path, template=template), 0.0, 64, 400))


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)
