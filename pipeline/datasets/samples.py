"""Sources of samples: each is a number of samples of one length that can be read in any order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.datasets.indexed import IndexedTokens, bin_file, idx_file
from pipeline.datasets.order import mix
from pipeline.datasets.text import Corpus
from pipeline.errors import DataError

MOCK_SAMPLES = 1 << 40
"""Samples of the mock: more than any run asks for."""

_EDGE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sequence and the token after it; `length` is that of the sequence."""

    tokens: npt.NDArray[np.int64]
    """Of shape [length + 1]."""
    documents: npt.NDArray[np.int64]
    """Which document each of the sequence's tokens is of, of shape [length]; falls nowhere."""
    targets: npt.NDArray[np.bool_] | None = None
    """Whether the token after each one is to be learnt, of shape [length]; None: all are."""


class SampleSource(Protocol):
    """Samples of one origin."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def samples(self) -> int:
        """How many there are, at least one."""

    @property
    def digest(self) -> bytes:
        """Equal on all ranks that read the same."""

    def read(self, sample: int) -> Sample:
        """One of them, counted from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenStream:
    """Tokens of documents one after the other, cut every `length` tokens; the last token of a sample is also the
    first of the next one, which has it as its first input."""

    name: str
    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    """First token of each document, ascending; the first is that of the stream."""
    length: int
    vocab_size: int
    digest: bytes
    first_document: int = 0
    """Number in the whole file of the stream's first document."""

    @property
    def samples(self) -> int:
        """How many there are."""
        return (len(self.tokens) - 1) // self.length

    def read(self, sample: int) -> Sample:
        """Raises DataError when it holds an id beyond the vocabulary."""
        begin = sample * self.length
        tokens = self.tokens[begin : begin + self.length + 1].astype(np.int64)
        documents = np.searchsorted(self.starts, np.arange(begin, begin + self.length + 1), side="right") - 1
        self._require_known(tokens, documents)
        return Sample(tokens=tokens, documents=documents[:-1])

    def _require_known(self, tokens: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> None:
        unknown = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))
        if len(unknown):
            at = unknown[0]
            raise DataError(
                f"{self.name}: document {self.first_document + documents[at]} holds token id {tokens[at]}, "
                f"model.vocab_size is {self.vocab_size}; take the model's own tokenizer, or a model of this vocabulary"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MockTokens:
    """Random tokens that follow from the seed alone; nothing is read."""

    length: int
    vocab_size: int
    seed: int
    name: str = "mock"
    samples: int = MOCK_SAMPLES

    @property
    def digest(self) -> bytes:
        """Follows from what the tokens follow from."""
        return hashlib.blake2b(f"{self.seed} {self.length} {self.vocab_size}".encode(), digest_size=16).digest()

    def read(self, sample: int) -> Sample:
        """Tokens that no other sample has, all of one document."""
        key = mix(mix(np.uint64(self.seed & ((1 << 64) - 1))) ^ np.uint64(sample))
        tokens = mix(key ^ np.arange(self.length + 1, dtype=np.uint64)) % np.uint64(self.vocab_size)
        return Sample(tokens=tokens.astype(np.int64), documents=np.zeros(self.length, np.int64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What is trained on and what is held out; None: nothing is held out."""

    train: SampleSource
    held_out: SampleSource | None


def stream_of_text(corpus: Corpus, *, length: int, vocab_size: int) -> TokenStream:
    """The bytes of a text as tokens, one document."""
    name = f"data.path: {corpus.source}"
    if (largest := int(corpus.tokens.max())) >= vocab_size:
        raise DataError(f"{name} holds byte {largest}, model.vocab_size is {vocab_size}; bytes need 256")
    return TokenStream(
        name=name,
        tokens=corpus.tokens,
        starts=np.zeros(1, np.int64),
        length=length,
        vocab_size=vocab_size,
        digest=corpus.digest,
    )


def stream_of_indexed(data: IndexedTokens, *, length: int, vocab_size: int) -> TokenStream:
    """All documents of an indexed dataset."""
    return TokenStream(
        name=data.prefix,
        tokens=data.tokens,
        starts=data.starts()[:-1],
        length=length,
        vocab_size=vocab_size,
        digest=fingerprint(data.prefix),
    )


def split_stream(stream: TokenStream, fraction: float) -> Parts:
    """Holds out the last `fraction` of a stream, from the first document that starts there where there is one.

    Raises DataError when a part is left without a sample.
    """
    if fraction == 0:
        return Parts(train=require_sample(stream), held_out=None)
    cut = round(len(stream.tokens) * (1 - fraction))
    following = np.searchsorted(stream.starts, cut)
    if following < len(stream.starts):
        cut = int(stream.starts[following])
    train = _part(stream, 0, cut, what="train on")
    return Parts(train=train, held_out=_part(stream, cut, len(stream.tokens), what="hold out"))


def require_sample(stream: TokenStream, what: str = "train on") -> TokenStream:
    """The stream; raises DataError when it holds no sample."""
    if stream.samples < 1:
        raise DataError(
            f"{stream.name} holds {len(stream.tokens)} tokens to {what}; one sample of recipe.sequence_length "
            f"{stream.length} needs {stream.length + 1}"
        )
    return stream


def _part(stream: TokenStream, begin: int, end: int, *, what: str) -> TokenStream:
    # The document that goes on across the cut is counted on both sides.
    inside = stream.starts[(stream.starts > begin) & (stream.starts < end)] - begin
    part = TokenStream(
        name=stream.name,
        tokens=stream.tokens[begin:end],
        starts=np.concatenate([np.zeros(1, np.int64), inside]),
        length=stream.length,
        vocab_size=stream.vocab_size,
        digest=stream.digest + f" {begin}:{end}".encode(),
        first_document=int(np.searchsorted(stream.starts, begin, side="right")) - 1,
    )
    return require_sample(part, what)


def fingerprint(prefix: str) -> bytes:
    """Tells indexed datasets apart by sizes and by the edges of both files: whole ones can be terabytes."""
    digest = hashlib.blake2b(digest_size=16)
    for path in (idx_file(prefix), bin_file(prefix)):
        size = path.stat().st_size
        digest.update(f"{size} ".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(_EDGE_BYTES))
            stream.seek(max(0, size - _EDGE_BYTES))
            digest.update(stream.read(_EDGE_BYTES))
    return digest.digest()
