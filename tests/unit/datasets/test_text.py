"""What can be trained on, and what is said about files that can't."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.datasets.text import read_corpus
from pipeline.errors import DataError


def test_a_file_is_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("Ærlig\r\n".encode())
    corpus = read_corpus(str(tmp_path / "text"))
    assert corpus.tokens.tobytes() == "Ærlig\r\n".encode()
    assert corpus.skipped == ()
    assert corpus.describe_skipped() is None


def test_a_folder_is_read_in_sorted_order_at_every_depth(tmp_path: Path) -> None:
    for name in ("b/2", "b/10", "a", "c/d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name + " ")
    assert read_corpus(str(tmp_path)).tokens.tobytes() == b"a b/10 b/2 c/d/e "


def test_the_digest_tells_texts_apart_and_nothing_else(tmp_path: Path) -> None:
    for name, text in {"one": "text", "same": "text", "other": "texs"}.items():
        (tmp_path / name).write_text(text)
    one, same, other = (read_corpus(str(tmp_path / name)).digest for name in ("one", "same", "other"))
    assert one == same
    assert one != other


def test_without_a_path_the_language_reference_is_read() -> None:
    corpus = read_corpus(None)
    assert corpus.source == "pydoc_data.topics"
    assert len(corpus.tokens) > 100_000


def test_without_the_language_reference_the_standard_library_is_read() -> None:
    # A None in sys.modules is how Python itself says that a package is not there.
    program = (
        "import sys; sys.modules['pydoc_data'] = None\n"
        "from pipeline.datasets.text import read_corpus\n"
        "corpus = read_corpus(None)\n"
        "print(len(corpus.tokens), b'import' in corpus.tokens.tobytes(), 'site-packages' in corpus.source)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    size, has_code, third_party = printed.split()
    assert int(size) > 100_000
    assert (has_code, third_party) == ("True", "False")


def test_files_that_are_no_text_are_skipped_and_told(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good")
    (tmp_path / "image").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    corpus = read_corpus(str(tmp_path))
    assert corpus.tokens.tobytes() == b"good"
    assert corpus.skipped == (
        "dangling (No such file or directory)",
        "image (binary)",
        "pipe (not a regular file)",
    )
    assert corpus.describe_skipped() == f"data.path: {tmp_path}: skipped 3 files: " + ", ".join(corpus.skipped)


def test_a_warning_about_many_files_stays_short(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good")
    for number in range(50):
        (tmp_path / f"image{number:02}").write_bytes(b"\0")
    told = read_corpus(str(tmp_path)).describe_skipped()
    assert told is not None
    assert told.endswith("skipped 50 files: image00 (binary), image01 (binary), image02 (binary) and 47 more")


def _missing(folder: Path) -> Path:
    return folder / "nowhere"


def _empty_file(folder: Path) -> Path:
    (folder / "empty").touch()
    return folder / "empty"


def _binary_file(folder: Path) -> Path:
    (folder / "image").write_bytes(b"text\0text")
    return folder / "image"


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    return folder / "socket"


def _device(_: Path) -> Path:
    return Path("/dev/zero")


def _link_to_itself(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def _empty_folder(folder: Path) -> Path:
    return folder


def _folder_of_empty_files(folder: Path) -> Path:
    (folder / "a").touch()
    return folder


def _folder_of_images(folder: Path) -> Path:
    (folder / "a").write_bytes(b"\0")
    return folder


def _below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("text")
    return folder / "file" / "below"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_missing, "can't be read (No such file or directory)"),
        (_empty_file, "is empty"),
        (_binary_file, "can't be trained on (binary)"),
        (_pipe, "can't be trained on (not a regular file)"),
        (_socket, "can't be trained on (not a regular file)"),
        (_device, "can't be trained on (not a regular file)"),
        (_link_to_itself, "can't be read (Too many levels of symbolic links)"),
        (_empty_folder, "no text in"),
        (_folder_of_empty_files, "1 empty files, 0 skipped"),
        (_folder_of_images, "0 empty files, 1 skipped: a (binary)"),
        (_below_a_file, "can't be read (Not a directory)"),
    ],
)
def test_a_path_without_text_is_named_with_the_reason(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as caught:
        read_corpus(str(path))
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_name_that_is_no_utf8_can_still_be_printed(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).touch()
    with pytest.raises(DataError) as caught:
        read_corpus(str(tmp_path / name))
    assert "caf\\xe9 is empty" in str(caught.value).encode().decode()


def test_a_path_with_a_null_byte_is_refused() -> None:
    with pytest.raises(DataError, match="can't be read"):
        read_corpus("a\0b")
