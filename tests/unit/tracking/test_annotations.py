"""Notes and tags of a run: kept whatever happens, and never a secret among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.rundir import RunDir
from pipeline.tracking.annotations import add_note, change_tags, parse_tags, read_annotations
from pipeline.tracking.secret_text import find_secret

SECRETS = [
    "hf_" + "a1B2" * 8,
    "see https://me:canary@example.org/x",
    "export WANDB_API_KEY=0123456789abcdef",
    "password: correcthorse",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "Authorization: Bearer " + "x" * 24,
    "AKIA" + "Q" * 16,
    "ghp_" + "z" * 36,
    '{"token": "abcdefgh"}',
]
HARMLESS = [
    "tokens per step: 4194304, lr 3e-4",
    "tokenizer: o200k_base",
    "max_tokens=2048000",
    "https://example.org/a:b@c",
    "loss spike at step 1200; see tokens/s = 51852",
    "sha256 " + "ab" * 32,
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_refused_unseen_and_leaves_nothing(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    for refused in (lambda: add_note(run, f"it was {text} then"), lambda: parse_tags([f"why={text}"])):
        with pytest.raises(UserError) as caught:
            refused()
        assert text not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["api_key", "HF-TOKEN", "db.password", "aws secret"])
def test_a_key_that_names_a_secret_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="by its name a secret") as caught:
        parse_tags([f"{key}=x1"])
    assert "x1" not in str(caught.value)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_researchers_write_is_no_secret(text: str) -> None:
    assert find_secret(text) is None


def test_notes_are_only_added_to_and_outlast_a_line_cut_off(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    add_note(run, "first\nof two lines µ")
    before = run.notes_file.read_bytes()
    with run.notes_file.open("ab") as stream:
        stream.write(b'{"schema": 1, "time": 1.')
    add_note(run, "second")
    said = read_annotations(run)
    assert run.notes_file.read_bytes().startswith(before)
    assert [note.text for note in said.notes] == ["first\nof two lines µ", "second"]
    assert said.markdown.index("second") < said.markdown.index("first")


def test_tags_are_set_changed_and_removed_and_each_change_is_seen(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    marks = [read_annotations(run).mark]
    for pairs in (["a=1", "b/c=x=y"], ["a=2"], ["a="]):
        change_tags(run, parse_tags(pairs))
        marks.append(read_annotations(run).mark)
    said = read_annotations(run)
    assert said.mlflow_tags == {"user.b/c": "x=y"}
    assert said.removed == ["user.a"]
    assert len(set(marks)) == 4
    assert marks[0] == ""
    with pytest.raises(UserError, match="has no tag 'a' to remove; there are: b/c"):
        change_tags(run, {"a": None, "new": "1"})
    assert "new" not in read_annotations(run).tags


@pytest.mark.parametrize("pair", ["a", "=x", "ä=1", "a\nb=1", "k" * 201 + "=1", "a=" + "v" * 5001, "-x=1"])
def test_what_is_no_tag_is_refused(pair: str) -> None:
    with pytest.raises(UserError):
        parse_tags([pair])
