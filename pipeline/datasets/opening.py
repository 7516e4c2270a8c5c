"""From `data.*` to sources: what is read, in which shares, and what is held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.datasets.chat import open_conversations
from pipeline.datasets.indexed import open_indexed
from pipeline.datasets.manifest import check_manifest
from pipeline.datasets.samples import (
    MockTokens,
    Parts,
    SampleSource,
    TokenStream,
    require_sample,
    split_stream,
    stream_of_indexed,
    stream_of_text,
)
from pipeline.datasets.staging import Staged, stage
from pipeline.datasets.text import read_corpus
from pipeline.types import DataKind, DataSpec, Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What a sample has to fit."""

    length: int
    """Tokens of a sample."""
    vocab_size: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedData:
    """All that a run reads."""

    train: tuple[SampleSource, ...]
    weights: tuple[float, ...]
    """Of each source; only their proportions count."""
    held_out: tuple[SampleSource, ...]
    """Sources to validate on, weighted as those to train on where there are as many; empty: none."""
    warnings: tuple[str, ...] = ()
    staged: tuple[Staged, ...] = ()
    """Copies on this node's own disk that are read in place of the sources."""

    @property
    def digest(self) -> bytes:
        """Equal on all ranks that opened the same."""
        return b"".join(source.digest for source in (*self.train, *self.held_out))


def open_data(spec: DataSpec, shape: Shape) -> OpenedData:
    """Opens what a run reads; raises DataError naming file and place of what can't be trained on."""
    warnings: list[str] = []
    staged: list[Staged] = []
    parts = [_open(spec, path, shape, warnings, staged) for path in _paths(spec)]
    held_out = tuple(part.held_out for part in parts if part.held_out is not None)
    if spec.validation_path is not None:
        held_out = (_whole(spec, spec.validation_path, shape, warnings, staged),)
    elif spec.kind is DataKind.mock:
        held_out = (MockTokens(length=shape.length, vocab_size=shape.vocab_size, seed=shape.seed + 1),)
    return OpenedData(
        train=tuple(part.train for part in parts),
        weights=tuple(spec.blend.values()) or (1.0,),
        held_out=held_out,
        warnings=tuple(warnings),
        staged=tuple(staged),
    )


def describe_data(opened: OpenedData, recipe: Recipe) -> dict[str, object]:
    """Sources with their shares and how often a run of this recipe walks through each, for the record."""
    consumed = recipe.steps * recipe.global_batch
    shares = [weight / sum(opened.weights) for weight in opened.weights]
    return {
        "train": [
            {
                "source": source.name,
                "samples": source.samples,
                "share": share,
                "epochs": consumed * share / source.samples,
            }
            for source, share in zip(opened.train, shares, strict=True)
        ],
        "held_out": [{"source": source.name, "samples": source.samples} for source in opened.held_out],
    }


def _paths(spec: DataSpec) -> tuple[str | None, ...]:
    return tuple(spec.blend) or (spec.path,)


def _open(spec: DataSpec, path: str | None, shape: Shape, warnings: list[str], staged: list[Staged]) -> Parts:
    if spec.kind is DataKind.mock:
        source = MockTokens(length=shape.length, vocab_size=shape.vocab_size, seed=shape.seed)
        return Parts(train=source, held_out=None)
    if spec.kind is DataKind.chat:
        return open_conversations(
            Path(path or ""), Path(spec.tokenizer or ""), spec.validation_fraction, shape.length, shape.vocab_size
        )
    return split_stream(_stream(spec, path, shape, warnings, staged), spec.validation_fraction)


def _whole(spec: DataSpec, path: str, shape: Shape, warnings: list[str], staged: list[Staged]) -> SampleSource:
    """Everything at a path, to be validated on."""
    if spec.kind is DataKind.chat:
        return open_conversations(Path(path), Path(spec.tokenizer or ""), 0.0, shape.length, shape.vocab_size).train
    return require_sample(_stream(spec, path, shape, warnings, staged), "validate on")


def _stream(spec: DataSpec, path: str | None, shape: Shape, warnings: list[str], staged: list[Staged]) -> TokenStream:
    if spec.kind is DataKind.text:
        corpus = read_corpus(path)
        if (skipped := corpus.describe_skipped()) is not None:
            warnings.append(skipped)
        return stream_of_text(corpus, length=shape.length, vocab_size=shape.vocab_size)
    if spec.stage_dir is not None:
        staged.append(stage(str(path), Path(spec.stage_dir)))
        path = staged[-1].prefix
    data = open_indexed(str(path))
    check_manifest(data, vocab_size=shape.vocab_size)
    return stream_of_indexed(data, length=shape.length, vocab_size=shape.vocab_size)
