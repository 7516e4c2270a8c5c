"""`himori data build`, as users call it: what it builds, how it survives, what it says about hostile input."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.cli import HIMORI, all_commands
from tiny_tokenizers import write_bpe

from pipeline.datasets.building import BuildPlan, plan_build, write_part
from pipeline.datasets.indexed import open_indexed
from pipeline.datasets.inputs import find_inputs, read_unit, units_of
from pipeline.datasets.tokenizer import Tokenizer, open_tokenizer
from pipeline.errors import DataError

WORDS = ["the cat sat on the mat", "", "Ærlig 火守\nfire", "a dog " * 50]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bpe(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return open_tokenizer(tokenizer_folder)


def write_json_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts))


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts, "id": list(range(len(texts)))}), path, row_group_size=2)


def write_gzip(path: Path, texts: list[str]) -> None:
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def himori(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*HIMORI, "data", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def plan_of(tokenizer: Tokenizer, *inputs: Path, skip_broken: bool = False, key: str = "text") -> BuildPlan:
    return plan_build(
        find_inputs([str(path) for path in inputs]),
        tokenizer,
        key=key,
        end_of_document=tokenizer.end_of_text,
        pattern=None,
        skip_broken=skip_broken,
    )


def test_documents_of_every_format_are_built_shown_and_verified(
    tmp_path: Path, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    folder, prefix = tmp_path / "in", tmp_path / "out" / "data"
    folder.mkdir()
    write_json_lines(folder / "a.jsonl", WORDS)
    write_parquet(folder / "b.parquet", WORDS)
    write_gzip(folder / "c.jsonl.gz", WORDS)
    (folder / "d.txt").write_text(WORDS[2])
    (folder / "empty.txt").touch()
    (folder / "picture.png").write_bytes(b"\0")
    (folder / "loop").symlink_to(folder)
    built = json.loads(himori("build", folder, "--tokenizer", tokenizer_folder, "-o", prefix, "--json").stdout)
    data = open_indexed(str(prefix))
    found = [tokenizer.decode(data.document(number).tolist()) for number in range(data.document_count)]
    assert found == [f"{text}<|end|>" for text in [*filter(None, WORDS)] * 3 + [WORDS[2]]]
    assert (built["documents"], built["tokens"]) == (10, len(data.tokens))
    assert built["largest_id"] == int(data.tokens.max())
    assert [one["empty_documents"] for one in built["inputs"]] == [1, 1, 1, 0, 0]
    assert not Path(f"{prefix}.parts").exists()
    assert "10 documents" in himori("verify", prefix).stdout
    assert "火守" in himori("show", prefix, "--document", 1).stdout
    with Path(f"{prefix}.bin").open("r+b") as stream:
        stream.write(b"\1\0")
    assert "data.bin: digest" in himori("verify", prefix, check=False).stderr


def test_a_dataset_is_never_written_over_and_the_same_build_again_finds_it(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    write_json_lines(tmp_path / "a.jsonl", WORDS)
    command = ("build", tmp_path / "a.jsonl", "--tokenizer", tokenizer_folder, "-o", tmp_path / "data")
    first = himori(*command, "--json").stdout
    before = (tmp_path / "data.bin").stat()
    assert himori(*command, "--json").stdout == first
    assert (tmp_path / "data.bin").stat() == before
    write_json_lines(tmp_path / "a.jsonl", WORDS[:1])
    refused = himori(*command, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "data is there already" in refused.stderr
    (tmp_path / "data.manifest.json").unlink()
    assert "is there already" in himori(*command, check=False).stderr
    assert (tmp_path / "data.bin").stat() == before


def test_a_killed_build_goes_on_and_builds_the_same(tmp_path: Path, tokenizer_folder: Path) -> None:
    for number in range(8):
        write_json_lines(tmp_path / f"{number}.jsonl", [f"{number} the cat {turn} " * 40 for turn in range(500)])
    inputs = sorted(tmp_path.glob("*.jsonl"))
    options = (*inputs, "--tokenizer", tokenizer_folder, "--workers", 2)
    himori("build", *options, "-o", tmp_path / "whole")
    killed = 0
    for stop_after in (1, 3, 6):
        building = subprocess.Popen([*HIMORI, "data", "build", *map(str, options), "-o", str(tmp_path / "cut")])
        parts = tmp_path / "cut.parts"
        deadline = time.monotonic() + 60
        while len(list(parts.glob("*.json"))) < stop_after and building.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        building.send_signal(signal.SIGKILL)
        killed += building.wait() == -signal.SIGKILL
        done = {path: path.stat().st_mtime_ns for path in parts.glob("*.json")}
    assert killed >= 2
    assert done
    wait_for_no_worker(building.pid)
    again = himori("build", *options, "-o", tmp_path / "cut")
    assert again.stderr == ""
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"cut{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def wait_for_no_worker(builder: int) -> None:
    deadline = time.monotonic() + 20
    while any(f"parent_pid={builder}" in command for _, command in all_commands()):
        assert time.monotonic() < deadline, "workers outlived their build"
        time.sleep(0.05)


def test_finished_parts_are_kept_and_damaged_ones_are_not(tmp_path: Path, tokenizer_folder: Path) -> None:
    for name in "abc":
        write_json_lines(tmp_path / f"{name}.jsonl", [f"{name} cat"] * 3)
    (tmp_path / "b.jsonl").write_text("{")
    command = ("build", *sorted(tmp_path.glob("*.jsonl")), "--tokenizer", tokenizer_folder, "-o", tmp_path / "data")
    failed = himori(*command, "--workers", 1, check=False)
    assert f"{tmp_path / 'b.jsonl'}: line 1: no JSON" in failed.stderr
    kept = list((tmp_path / "data.parts").glob("*.bin"))
    assert kept
    kept[0].write_bytes(b"")
    write_json_lines(tmp_path / "b.jsonl", ["b cat"] * 3)
    himori(*command)
    data = open_indexed(str(tmp_path / "data"))
    assert data.document_count == 9


def test_two_builds_of_one_prefix_exclude_each_other(tmp_path: Path, tokenizer_folder: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", WORDS)
    (tmp_path / "data.parts").mkdir()
    with (tmp_path / "data.parts" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = himori(
            "build", tmp_path / "a.jsonl", "--tokenizer", tokenizer_folder, "-o", tmp_path / "data", check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another build is at work" in done.stderr


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_line_belongs_to_one_unit_however_the_file_is_cut(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    write_json_lines(path, [f"{number}" * (number % 9 + 1) for number in range(60)])
    (whole,) = units_of(path)
    cuts = [*range(0, whole.end, size), whole.end]
    pieces = [replace(whole, begin=begin, end=end) for begin, end in pairwise(cuts)]
    found = [record.text for piece in pieces for record in read_unit(piece, key="text")]
    assert found == [record.text for record in read_unit(whole, key="text")]
    assert len(found) == 60


def test_the_end_of_a_document_can_be_chosen(tmp_path: Path, tokenizer_folder: Path, tokenizer: Tokenizer) -> None:
    write_json_lines(tmp_path / "a.jsonl", ["cat", "dog"])
    for choice, end in (("none", []), ("7", [7])):
        prefix = tmp_path / f"data-{choice.strip('<|>')}"
        himori("build", tmp_path / "a.jsonl", "--tokenizer", tokenizer_folder, "-o", prefix, "--end", choice)
        assert open_indexed(str(prefix)).document(1).tolist() == tokenizer.encode(["dog"])[0] + end
    refused = himori(
        "build", tmp_path / "a.jsonl", "--tokenizer", tokenizer_folder, "-o", "x", "--end", "moo", check=False
    )
    assert "--end: 'moo' is no token" in refused.stderr


# --------------------------------------------------------------------------- hostile input


def good(*more: bytes) -> bytes:
    return b"\n".join([b'{"text": "cat"}', *more]) + b"\n"


HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "no json": ("a.jsonl", good(b"{"), "line 2: no JSON"),
    "not an object": ("a.jsonl", good(b"[1]"), "line 2: no text `text` (--key); there is: a list"),
    "another key": ("a.jsonl", good(b'{"body": "x"}'), "line 2: no text `text` (--key); there is: body"),
    "not text": ("a.jsonl", good(b"", b'{"text": 3}'), "line 3: no text `text`"),
    "invalid utf-8": ("a.jsonl", good(b'{"text": "\xff"}'), "line 2: invalid UTF-8 at byte 11"),
    "a lone surrogate": ("a.jsonl", good(b'{"text": "a\\ud800"}'), "line 2: half of a surrogate pair at character 2"),
    "nested": ("a.jsonl", good(b"[" * 100_000), "line 2: no JSON"),
    "cut in the middle": ("a.jsonl", good(b'{"text": "ca'), "line 2: no JSON"),
    "gzip line": ("a.jsonl.gz", gzip.compress(good(b"{")), "line 2: no JSON"),
    "gzip cut": ("a.jsonl.gz", gzip.compress(good(os.urandom(9999).hex().encode()))[:500], "can't be unpacked"),
    "no gzip": ("a.jsonl.gz", good(), "can't be unpacked"),
    "no parquet": ("a.parquet", b"PAR1 and nothing", "is no parquet file"),
    "empty parquet": ("a.parquet", b"", "is no parquet file"),
    "latin-1": ("a.txt", b"one\ncaf\xe9", "line 2: invalid UTF-8 at byte 8 of the file"),
}


@pytest.mark.parametrize(("name", "content", "said"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_named_with_the_line(
    tmp_path: Path, tokenizer: Tokenizer, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(lambda: build_all(tmp_path, tokenizer, tmp_path / name))
    assert f"{tmp_path / name}: {said}" in message


@pytest.mark.parametrize("case", [case for case, (_, _, said) in HOSTILE.items() if "line" in said])
def test_broken_documents_are_left_out_on_request_and_counted(tmp_path: Path, tokenizer: Tokenizer, case: str) -> None:
    name, content, _ = HOSTILE[case]
    (tmp_path / name).write_bytes(content)
    (part,) = build_all(tmp_path, tokenizer, tmp_path / name, skip_broken=True)
    assert part.broken_documents == 1
    assert part.documents == (0 if name == "a.txt" else 1)


def parquet_without_the_column(path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), path)


def parquet_of_numbers(path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), path)


def parquet_of_bad_text(path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes()), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"text": bad}), path)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (parquet_without_the_column, "no column 'text' (--key); columns there: body, id"),
        (parquet_of_numbers, "column 'text' holds int64, not text"),
        (parquet_of_bad_text, "row 2: invalid UTF-8"),
    ],
)
def test_hostile_parquet_is_named(
    tmp_path: Path, tokenizer: Tokenizer, write: Callable[[Path], None], said: str
) -> None:
    write(tmp_path / "a.parquet")
    assert f"{tmp_path / 'a.parquet'}: {said}" in refusal(
        lambda: build_all(tmp_path, tokenizer, tmp_path / "a.parquet")
    )


def missing(_: Path) -> None:
    return


def loop(path: Path) -> None:
    path.symlink_to(path)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def empty_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (missing, "can't be read (No such file or directory)"),
        (loop, "can't be read (Too many levels of symbolic links)"),
        (pipe, "is not a regular file"),
        (empty_folder, "holds no file with a suffix out of .jsonl"),
    ],
)
def test_inputs_that_are_no_files_are_named(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "input")
    assert refusal(lambda: find_inputs([str(tmp_path / "input")])).startswith(f"{tmp_path / 'input'}: {said}")


def test_nothing_but_empty_documents_is_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    write_json_lines(tmp_path / "b.jsonl", ["", ""])
    command = ("build", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--tokenizer", tokenizer_folder)
    done = himori(*command, "-o", tmp_path / "data", check=False)
    assert (done.returncode, done.stderr) == (2, f"himori: {tmp_path / 'a.jsonl'}: no text in it nor in the others\n")
    assert not (tmp_path / "data.bin").exists()


def build_all(folder: Path, tokenizer: Tokenizer, *inputs: Path, skip_broken: bool = False) -> list[Any]:
    plan = plan_of(tokenizer, *inputs, skip_broken=skip_broken)
    return [write_part(plan, tokenizer, unit, folder) for unit in range(len(plan.units))]


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_the_packages_it_is_said_what_to_install(tokenizer_folder: Path) -> None:
    program = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from pipeline.__main__ import main\n"
        f"sys.exit(main(['data', 'build', 'x', '-o', 'y', '--tokenizer', {str(tokenizer_folder)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "himori: tokenizers is not installed; install himori[data]\n")
