"""PREFIX.manifest.json beside an indexed dataset: what was built from what, and digests to know it again by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.datasets.indexed import IndexedTokens, bin_file, check_indexed, idx_file, open_indexed
from pipeline.errors import DataError, RunDirError
from pipeline.rundir import read_json, write_json

_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecord:
    """The tokenizer that made the tokens."""

    path: str
    digest: str
    """Of its files."""
    vocab_size: int
    """One more than its largest id, added tokens included."""
    end_of_document: int | None
    """Id behind each document; None: nothing stands between documents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputRecord:
    """One file that was read."""

    path: str
    bytes: int
    modified_ns: int
    documents: int = 0
    empty_documents: int = 0
    """Documents without text, left out."""
    broken_documents: int = 0
    """Documents that couldn't be read, left out on request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All that is known of a dataset."""

    documents: int
    tokens: int
    token_type: str
    largest_id: int
    bin_digest: str
    idx_digest: str
    tokenizer: TokenizerRecord
    inputs: tuple[InputRecord, ...]
    himori: str


def manifest_file(prefix: str) -> Path:
    """Where the manifest is."""
    return Path(f"{prefix}.manifest.json")


def read_manifest(prefix: str) -> Manifest | None:
    """The manifest, or None beside datasets that other tools made; raises DataError when it can't be read."""
    try:
        return read_json(manifest_file(prefix), Manifest)
    except FileNotFoundError:
        return None
    except (RunDirError, OSError) as error:
        raise DataError(f"{error}; build the dataset anew") from error


def write_manifest(prefix: str, manifest: Manifest) -> None:
    """Written last: a dataset that has one is whole."""
    write_json(manifest_file(prefix), manifest)


def check_manifest(data: IndexedTokens, *, vocab_size: int) -> None:
    """Compares a dataset with its manifest, where it has one, without reading all of it; raises DataError."""
    manifest = read_manifest(data.prefix)
    if manifest is None:
        return
    _require_counts(data, manifest)
    if manifest.largest_id >= vocab_size:
        raise DataError(
            f"{data.prefix}: holds token ids up to {manifest.largest_id} of the tokenizer {manifest.tokenizer.path}, "
            f"model.vocab_size is {vocab_size}; choose the model's own tokenizer, or a model of this vocabulary"
        )


def verify(prefix: str, *, progress: Callable[[int], None] = lambda _: None) -> Manifest:
    """Reads a dataset whole and compares it with its manifest; `progress` is told each number of bytes read.

    Raises DataError naming the file that differs.
    """
    data = open_indexed(prefix)
    check_indexed(data)
    manifest = read_manifest(prefix)
    if manifest is None:
        raise DataError(f"{manifest_file(prefix)}: is not there; only what `himori data build` made can be verified")
    _require_counts(data, manifest)
    for path, wanted in ((idx_file(prefix), manifest.idx_digest), (bin_file(prefix), manifest.bin_digest)):
        found = digest_of(path, progress=progress)
        if found != wanted:
            raise DataError(
                f"{path}: digest {found}, its manifest says {wanted}; the file was changed after it was built"
            )
    return manifest


def digest_of(path: Path, *, progress: Callable[[int], None] = lambda _: None) -> str:
    """BLAKE2b of a whole file, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def _require_counts(data: IndexedTokens, manifest: Manifest) -> None:
    for what, found, wanted in (
        ("documents", data.document_count, manifest.documents),
        ("tokens", len(data.tokens), manifest.tokens),
        ("token type", np.dtype(data.tokens.dtype).name, manifest.token_type),
    ):
        if found != wanted:
            raise DataError(
                f"{data.prefix}: {what}: {found}, {manifest_file(data.prefix)} says {wanted}; build it anew"
            )
