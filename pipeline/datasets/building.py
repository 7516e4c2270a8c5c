"""Builds an indexed dataset from documents, in several processes, going on where an earlier try was killed.

The input is cut into units. Each becomes a part in PREFIX.parts, named for all that decides what it holds, its
summary written last: a part that has a summary is whole. Joined parts become PREFIX.bin and PREFIX.idx, the manifest is
written last, and only what was verified loses its parts.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline import __version__
from pipeline.datasets.indexed import bin_file, idx_file, token_type, write_index
from pipeline.datasets.inputs import Record, Unit, read_unit, units_of
from pipeline.datasets.manifest import (
    InputRecord,
    Manifest,
    TokenizerRecord,
    digest_of,
    read_manifest,
    verify,
    write_manifest,
)
from pipeline.datasets.tokenizer import Tokenizer, open_tokenizer
from pipeline.errors import DataError, RunDirError
from pipeline.rundir import read_json, to_jsonable, write_json

_BATCH_CHARACTERS = 1 << 20
_JOINING = "joining"
"""File in PREFIX.parts: from here on, PREFIX.bin and PREFIX.idx are this build's own."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    """All that decides what is built."""

    inputs: tuple[InputRecord, ...]
    units: tuple[Unit, ...]
    key: str
    """Field or column that holds the text."""
    tokenizer: TokenizerRecord
    pattern: str | None
    skip_broken: bool
    """Leave documents out that can't be read, and count them."""

    @property
    def token_type(self) -> type[np.integer]:
        """Of the tokens on disk."""
        return token_type(self.tokenizer.vocab_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """What a part holds."""

    name: str
    unit: int
    """Its place in the dataset, in the plan it was made under."""
    documents: int
    empty_documents: int
    broken_documents: int
    tokens: int
    largest_id: int
    digest: str


Progress = Callable[[Unit, PartSummary], None]


def plan_build(
    inputs: list[Path],
    tokenizer: Tokenizer,
    *,
    key: str,
    end_of_document: int | None,
    pattern: str | None,
    skip_broken: bool,
) -> BuildPlan:
    """Cuts the input into units; raises DataError naming a file that can't be read."""
    return BuildPlan(
        inputs=tuple(
            InputRecord(path=str(path), bytes=(found := path.stat()).st_size, modified_ns=found.st_mtime_ns)
            for path in inputs
        ),
        units=tuple(unit for path in inputs for unit in units_of(path)),
        key=key,
        tokenizer=TokenizerRecord(
            path=str(tokenizer.path),
            digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            end_of_document=end_of_document,
        ),
        pattern=pattern,
        skip_broken=skip_broken,
    )


def build(plan: BuildPlan, prefix: str, *, workers: int, progress: Progress) -> Manifest:
    """Builds the dataset, or the rest of it; `progress` is told of each part, of earlier tries too.

    Raises DataError when an input is broken, or when another dataset is there already.
    """
    parts = Path(f"{prefix}.parts")
    _refuse_existing(plan, prefix, parts)
    with _locked(parts):
        manifest = read_manifest(prefix) or _build(plan, prefix, parts, workers=workers, progress=progress)
        verify(prefix)
    shutil.rmtree(parts)
    return manifest


def _build(plan: BuildPlan, prefix: str, parts: Path, *, workers: int, progress: Progress) -> Manifest:
    names = [part_name(plan, unit) for unit in range(len(plan.units))]
    done = {unit: part for unit, name in enumerate(names) if (part := _finished(parts, name, plan)) is not None}
    for unit, part in done.items():
        progress(plan.units[unit], part)
    for part in _run(plan, parts, [unit for unit in range(len(names)) if unit not in done], workers=workers):
        done[part.unit] = part
        progress(plan.units[part.unit], part)
    return _join(plan, parts, [replace(done[unit], unit=unit) for unit in range(len(names))], prefix)


# --------------------------------------------------------------------------- before and after


def _refuse_existing(plan: BuildPlan, prefix: str, parts: Path) -> None:
    """A dataset that is there is never written over; the same build again finds it done."""
    found = read_manifest(prefix)
    if found is not None and (found.tokenizer != plan.tokenizer or _bare(found.inputs) != _bare(plan.inputs)):
        raise DataError(f"-o: {prefix} is there already, built of other inputs; choose another prefix, or remove it")
    foreign = [path for path in (idx_file(prefix), bin_file(prefix)) if path.exists()]
    if found is None and foreign and not (parts / _JOINING).exists():
        raise DataError(f"-o: {foreign[0]} is there already; choose another prefix, or remove it")


def _bare(inputs: Iterable[InputRecord]) -> list[tuple[str, int, int]]:
    return [(one.path, one.bytes, one.modified_ns) for one in inputs]


@contextmanager
def _locked(parts: Path) -> Iterator[None]:
    try:
        parts.mkdir(parents=True, exist_ok=True)
        stream = (parts / "lock").open("w")
    except OSError as error:
        raise DataError(f"-o: {parts} can't be written ({error.strerror}); choose another prefix") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{parts}: another build is at work there; wait for it, or choose another -o") from None
        yield


def part_name(plan: BuildPlan, unit: int) -> str:
    """Follows from all that decides what a part holds: a part of this name can be kept, whoever made it."""
    piece = plan.units[unit]
    (source,) = {one for one in plan.inputs if one.path == piece.path}
    decisive = replace(plan, inputs=(source,), units=(piece,))
    return hashlib.blake2b(json.dumps(to_jsonable(decisive)).encode(), digest_size=12).hexdigest()


def _finished(parts: Path, name: str, plan: BuildPlan) -> PartSummary | None:
    """A part of an earlier try, if it is whole."""
    try:
        part = read_json(parts / f"{name}.json", PartSummary)
    except (FileNotFoundError, RunDirError):
        return None
    sizes = part.tokens * plan.token_type().itemsize, part.documents * 4
    found = tuple(file.stat().st_size if file.exists() else -1 for file in part_files(parts, name))
    return part if found == sizes else None


def part_files(parts: Path, name: str) -> tuple[Path, Path]:
    """Tokens and lengths of a part."""
    return parts / f"{name}.bin", parts / f"{name}.len"


def _join(plan: BuildPlan, parts: Path, done: list[PartSummary], prefix: str) -> Manifest:
    if not sum(part.tokens for part in done):
        raise DataError(
            f"{plan.inputs[0].path}: no text in it" + (" nor in the others" if len(plan.inputs) > 1 else "")
        )
    temporary = {final: final.with_name(f"{final.name}.partial") for final in (bin_file(prefix), idx_file(prefix))}
    bin_digest = _concatenate(parts, done, temporary[bin_file(prefix)])
    lengths = np.concatenate([np.fromfile(part_files(parts, part.name)[1], dtype=np.int32) for part in done])
    write_index(temporary[idx_file(prefix)], lengths, plan.token_type)
    idx_digest = digest_of(temporary[idx_file(prefix)])
    (parts / _JOINING).touch()
    for final, path in temporary.items():
        path.replace(final)
    manifest = Manifest(
        documents=len(lengths),
        tokens=sum(part.tokens for part in done),
        token_type=np.dtype(plan.token_type).name,
        largest_id=max(part.largest_id for part in done),
        bin_digest=bin_digest,
        idx_digest=idx_digest,
        tokenizer=plan.tokenizer,
        inputs=_counted(plan, done),
        himori=__version__,
    )
    write_manifest(prefix, manifest)
    return manifest


def _concatenate(parts: Path, done: list[PartSummary], target: Path) -> str:
    """Joins the tokens, each part checked against its own digest; the digest of the whole."""
    whole = hashlib.blake2b(digest_size=16)
    with target.open("wb") as stream:
        for part in done:
            path, own = part_files(parts, part.name)[0], hashlib.blake2b(digest_size=16)
            with path.open("rb") as source:
                while chunk := source.read(1 << 24):
                    own.update(chunk)
                    whole.update(chunk)
                    stream.write(chunk)
            if own.hexdigest() != part.digest:
                raise DataError(f"{path}: was changed after it was written; remove it")
        stream.flush()
        os.fsync(stream.fileno())
    return whole.hexdigest()


def _counted(plan: BuildPlan, done: list[PartSummary]) -> tuple[InputRecord, ...]:
    """The inputs with what was found in each."""
    counted = {one.path: one for one in plan.inputs}
    for part in done:
        before = counted[plan.units[part.unit].path]
        counted[before.path] = replace(
            before,
            documents=before.documents + part.documents,
            empty_documents=before.empty_documents + part.empty_documents,
            broken_documents=before.broken_documents + part.broken_documents,
        )
    return tuple(counted.values())


# --------------------------------------------------------------------------- workers


def _run(plan: BuildPlan, parts: Path, units: list[int], *, workers: int) -> Iterator[PartSummary]:
    """Parts as they get done; the first error ends all, what was done until then stays."""
    if not units:
        return
    # A forked process would inherit locks of the tokenizer's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(units)), context, _start_worker, (plan, parts, os.getpid())) as pool:
        pending = {pool.submit(_build_part, unit) for unit in units}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from _results(done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _results(done: Iterable[Future[PartSummary]]) -> Iterator[PartSummary]:
    try:
        for future in done:
            yield future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process of the build was killed, perhaps for want of memory; call it again with fewer --workers"
        ) from error


@dataclass(slots=True)
class _Worker:
    """What a worker process holds on to between its parts."""

    plan: BuildPlan
    parts: Path
    tokenizer: Tokenizer


_worker: list[_Worker] = []


def _start_worker(plan: BuildPlan, parts: Path, parent: int) -> None:
    # A build that is killed leaves no processes behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the build itself decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the cores already
    _worker[:] = [_Worker(plan, parts, open_tokenizer(Path(plan.tokenizer.path), pattern=plan.pattern))]


def _build_part(unit: int) -> PartSummary:
    (worker,) = _worker
    part = write_part(worker.plan, worker.tokenizer, unit, worker.parts)
    write_json(worker.parts / f"{part.name}.json", part)
    return part


def write_part(plan: BuildPlan, tokenizer: Tokenizer, unit: int, parts: Path) -> PartSummary:
    """Tokenizes one unit; raises DataError at the first broken document unless those are skipped."""
    name = part_name(plan, unit)
    tokens_file, lengths_file = part_files(parts, name)
    temporary = tokens_file.with_name(f".{tokens_file.name}.{os.getpid()}")
    digest, lengths, counts = hashlib.blake2b(digest_size=16), list[int](), {"empty": 0, "broken": 0, "largest": 0}
    with temporary.open("wb") as stream:
        for batch in _batches(read_unit(plan.units[unit], key=plan.key), counts, skip_broken=plan.skip_broken):
            for ids in tokenizer.encode(batch):
                content = _as_tokens(ids, plan)
                counts["largest"] = max(counts["largest"], int(content.max(initial=0)))
                lengths.append(len(content))
                digest.update(content.tobytes())
                content.tofile(stream)
        stream.flush()
        os.fsync(stream.fileno())
    np.asarray(lengths, dtype=np.int32).tofile(lengths_file)
    temporary.replace(tokens_file)
    return PartSummary(
        name=name,
        unit=unit,
        documents=len(lengths),
        empty_documents=counts["empty"],
        broken_documents=counts["broken"],
        tokens=sum(lengths),
        largest_id=counts["largest"],
        digest=digest.hexdigest(),
    )


def _as_tokens(ids: list[int], plan: BuildPlan) -> npt.NDArray[np.integer]:
    end = plan.tokenizer.end_of_document
    return np.asarray(ids if end is None else [*ids, end], dtype=plan.token_type)


def _batches(records: Iterable[Record], counts: dict[str, int], *, skip_broken: bool) -> Iterator[list[str]]:
    """Texts in portions that a tokenizer takes well; counts what is left out."""
    batch: list[str] = []
    size = 0
    for record in records:
        if record.problem and not skip_broken:
            raise DataError(f"{record.problem}; --skip-broken leaves such documents out")
        counts["broken"] += bool(record.problem)
        counts["empty"] += not record.problem and not record.text
        if record.text:
            batch.append(record.text)
            size += len(record.text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
