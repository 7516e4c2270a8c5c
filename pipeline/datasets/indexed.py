"""Megatron's indexed datasets: PREFIX.bin holds the tokens of all documents, PREFIX.idx says where each one lies.

Layout of the index (megatron/core/datasets/indexed_dataset.py), little-endian: the magic, version 1 as u64, a code for
the token type as u8, the numbers of sequences and of document boundaries as u64 each, then the length of each sequence
in tokens as i32, its offset in bytes as i64, and for each boundary the number of sequences before it as i64.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

TOKEN_TYPES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
"""By their code; Megatron's two floating-point codes hold no tokens."""

_SMALL_VOCABULARY = 65500


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedTokens:
    """An indexed dataset, mapped into memory; reading is left to the page cache."""

    prefix: str
    tokens: npt.NDArray[Any]
    """All tokens, document after document."""
    lengths: npt.NDArray[np.int32]
    """Tokens of each sequence."""
    offsets: npt.NDArray[np.int64]
    """Where each sequence starts, in bytes."""
    documents: npt.NDArray[np.int64]
    """Sequences before each document, and at the end their number."""

    @property
    def document_count(self) -> int:
        """Documents there are."""
        return len(self.documents) - 1

    def starts(self) -> npt.NDArray[np.int64]:
        """First token of each document, counted over the whole file; its end, too, for the last one."""
        total = np.array([len(self.tokens)], dtype=np.int64)
        of_sequence = np.concatenate([self.offsets // self.tokens.itemsize, total])
        return np.asarray(of_sequence[self.documents])

    def document(self, number: int) -> npt.NDArray[Any]:
        """The tokens of a document."""
        begin, end = self.starts()[number : number + 2]
        return self.tokens[begin:end]


def bin_file(prefix: str | Path) -> Path:
    """Where the tokens are."""
    return Path(f"{prefix}.bin")


def idx_file(prefix: str | Path) -> Path:
    """Where the index is."""
    return Path(f"{prefix}.idx")


def token_type(vocab_size: int) -> type[np.integer[Any]]:
    """The smallest type Megatron itself chooses for token ids below `vocab_size`."""
    return np.uint16 if vocab_size < _SMALL_VOCABULARY else np.int32


def open_indexed(prefix: str) -> IndexedTokens:
    """Maps an indexed dataset; raises DataError naming the file that is missing, cut short or of another kind."""
    index = _map(idx_file(prefix), np.uint8)
    kind, sequences, boundaries = _read_header(idx_file(prefix), index)
    lengths, offsets, documents = _read_arrays(idx_file(prefix), index, sequences, boundaries)
    return IndexedTokens(
        prefix=prefix,
        tokens=_map_tokens(prefix, kind, lengths, offsets),
        lengths=lengths,
        offsets=offsets,
        documents=documents,
    )


def check_indexed(data: IndexedTokens) -> None:
    """Reads the whole index; raises DataError at the first sequence or document that contradicts its neighbours."""
    where = idx_file(data.prefix)
    if len(negative := np.flatnonzero(data.lengths < 0)):
        raise DataError(f"{where}: sequence {negative[0]} has a length of {data.lengths[negative[0]]}")
    due = np.concatenate([[0], np.cumsum(data.lengths, dtype=np.int64)[:-1]]) * data.tokens.itemsize
    if len(wrong := np.flatnonzero(due != data.offsets)):
        at = wrong[0]
        raise DataError(f"{where}: sequence {at} starts at byte {data.offsets[at]}, its predecessors end at {due[at]}")
    if len(wrong := np.flatnonzero(np.diff(data.documents) < 0)):
        raise DataError(f"{where}: document {wrong[0]} ends before it starts")


def write_index(path: Path, lengths: npt.NDArray[np.int32], kind: type[np.integer[Any]]) -> None:
    """Writes the index of documents of one sequence each, durably."""
    code = next(code for code, known in TOKEN_TYPES.items() if known is kind)
    offsets = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1], out=offsets[1:])
    with path.open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
        for part in (lengths.astype("<i4"), offsets * kind().itemsize, np.arange(len(lengths) + 1, dtype=np.int64)):
            part.tofile(stream)
        stream.flush()
        os.fsync(stream.fileno())


def write_indexed(prefix: str, documents: Iterable[npt.ArrayLike], kind: type[np.integer[Any]]) -> None:
    """Writes a small dataset at once; `himori data build` writes large ones."""
    lengths = []
    with bin_file(prefix).open("wb") as stream:
        for document in documents:
            tokens = np.asarray(document, dtype=kind)
            tokens.tofile(stream)
            lengths.append(len(tokens))
    write_index(idx_file(prefix), np.asarray(lengths, dtype=np.int32), kind)


def _map(path: Path, kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
    try:
        size = path.stat().st_size
        # An empty file can't be mapped.
        return np.memmap(path, dtype=kind, mode="r", shape=(size // kind().itemsize,)) if size else np.empty(0, kind)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: can't be read ({reason}); name the prefix of a .bin and an .idx file") from None


def _read_header(path: Path, index: npt.NDArray[np.uint8]) -> tuple[type[np.integer[Any]], int, int]:
    """Token type, number of sequences, number of document boundaries."""
    if len(index) < HEADER.size:
        raise DataError(f"{path}: {len(index)} bytes, an index has at least {HEADER.size}; it was cut short")
    magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    if magic != MAGIC:
        raise DataError(f"{path}: is no index of Megatron (starts with {magic!r}); `himori data build` makes one")
    if version != VERSION:
        raise DataError(f"{path}: index of version {version}; version {VERSION} can be read")
    if code not in TOKEN_TYPES:
        raise DataError(f"{path}: token type {code}; types that hold tokens: {', '.join(map(str, TOKEN_TYPES))}")
    return TOKEN_TYPES[code], sequences, boundaries


def _read_arrays(
    path: Path, index: npt.NDArray[np.uint8], sequences: int, boundaries: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    wanted = HEADER.size + 12 * sequences + 8 * boundaries
    # Behind them, multimodal datasets have a byte for each sequence.
    if len(index) not in (wanted, wanted + sequences):
        raise DataError(
            f"{path}: {len(index)} bytes, {sequences} sequences and {boundaries} boundaries take {wanted}; "
            "it was cut short or is damaged"
        )
    body = memoryview(index.data)[HEADER.size :]
    lengths = np.frombuffer(body, np.int32, sequences)
    offsets = np.frombuffer(body, np.int64, sequences, offset=4 * sequences)
    documents = np.frombuffer(body, np.int64, boundaries, offset=12 * sequences)
    if boundaries < 1 or documents[0] != 0 or documents[-1] != sequences:
        raise DataError(f"{path}: its documents don't cover its {sequences} sequences; it is damaged")
    return lengths, offsets, documents


def _map_tokens(
    prefix: str, kind: type[np.integer[Any]], lengths: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    path, size = bin_file(prefix), kind().itemsize
    tokens = _map(path, kind)
    found = path.stat().st_size
    wanted = int(offsets[-1]) + int(lengths[-1]) * size if len(lengths) else 0
    if found != wanted:
        raise DataError(
            f"{path}: {found} bytes, its index {idx_file(prefix)} says {wanted}; it was cut short or is another"
        )
    return tokens
