"""data build, show and verify: token files for training."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pipeline.datasets import building, manifest
from pipeline.datasets.indexed import IndexedTokens, check_indexed, open_indexed
from pipeline.datasets.inputs import Unit, find_inputs
from pipeline.datasets.manifest import Manifest
from pipeline.datasets.tokenizer import Tokenizer, open_tokenizer
from pipeline.errors import UserError
from pipeline.rundir import to_jsonable


def build(arguments: argparse.Namespace) -> int:
    """Tokenizes documents into PREFIX.bin and PREFIX.idx."""
    if arguments.workers is not None and arguments.workers < 1:
        raise UserError(f"--workers: {arguments.workers}; give at least 1")
    tokenizer = open_tokenizer(arguments.tokenizer.expanduser().resolve(), pattern=arguments.pattern)
    plan = building.plan_build(
        find_inputs(arguments.inputs),
        tokenizer,
        key=arguments.key,
        end_of_document=_end_of_document(arguments.end, tokenizer),
        pattern=arguments.pattern,
        skip_broken=arguments.skip_broken,
    )
    workers = arguments.workers or len(os.sched_getaffinity(0))
    with _progress() as bar:
        task = bar.add_task("tokens", total=sum(unit.bytes for unit in plan.units), tokens=0)
        tokens = 0

        def advance(unit: Unit, part: building.PartSummary) -> None:
            nonlocal tokens
            tokens += part.tokens
            bar.update(task, advance=unit.bytes, tokens=tokens)

        built = building.build(plan, arguments.output, workers=workers, progress=advance)
    _report(arguments.output, built, as_json=arguments.json)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Prints what a dataset holds."""
    data = open_indexed(arguments.prefix)
    check_indexed(data)
    found = manifest.read_manifest(arguments.prefix)
    if found is None:
        _report_foreign(data, as_json=arguments.json)
    else:
        _report(arguments.prefix, found, as_json=arguments.json)
    if arguments.document is not None:
        _print_document(data, found, arguments.document)
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Reads a dataset whole and compares it with its manifest."""
    sizes = sum(
        Path(f"{arguments.prefix}{suffix}").stat().st_size
        for suffix in (".idx", ".bin")
        if Path(f"{arguments.prefix}{suffix}").exists()
    )
    with _progress() as bar:
        task = bar.add_task("verified", total=sizes, tokens=0)
        found = manifest.verify(arguments.prefix, progress=lambda size: bar.update(task, advance=size))
    if arguments.json:
        _report(arguments.prefix, found, as_json=True)
    else:
        print(f"{arguments.prefix}: {found.documents} documents, {found.tokens} tokens, as they were built")
    return 0


def _end_of_document(wanted: str | None, tokenizer: Tokenizer) -> int | None:
    """Id of the token behind each document; raises UserError when there is no such token."""
    if wanted == "none":
        return None
    if wanted is None:
        if tokenizer.end_of_text is None:
            raise UserError(f"--end: {tokenizer.path} names no end of text; give --end TOKEN, or --end none")
        return tokenizer.end_of_text
    is_id = wanted.isdecimal() and int(wanted) < tokenizer.vocab_size
    found = int(wanted) if is_id else tokenizer.id_of(wanted)
    if found is None:
        raise UserError(f"--end: {wanted!r} is no token of {tokenizer.path}, nor an id below {tokenizer.vocab_size}")
    return found


def _progress() -> Progress:
    """On stderr, and only where somebody watches."""
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[tokens]:,} {task.description}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _report(prefix: str, found: Manifest, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"prefix": prefix, **to_jsonable(found)}, indent=1))
        return
    end = found.tokenizer.end_of_document
    rows = [
        ("prefix", prefix),
        ("documents", f"{found.documents:,}"),
        ("tokens", f"{found.tokens:,} ({found.tokens / max(1, found.documents):.1f} a document)"),
        ("stored as", found.token_type),
        ("largest id", f"{found.largest_id:,} of a vocabulary of {found.tokenizer.vocab_size:,}"),
        ("tokenizer", f"{found.tokenizer.path} ({found.tokenizer.digest})"),
        ("end of document", "nothing" if end is None else str(end)),
        ("inputs", f"{len(found.inputs)} files, {sum(one.bytes for one in found.inputs):,} bytes"),
        ("digest", found.bin_digest),
    ]
    for what, left_out in (
        ("empty", sum(one.empty_documents for one in found.inputs)),
        ("broken", sum(one.broken_documents for one in found.inputs)),
    ):
        if left_out:
            rows.append((f"{what}, left out", f"{left_out:,} documents"))
    _print_rows(rows)


def _report_foreign(data: IndexedTokens, *, as_json: bool) -> None:
    """A dataset that another tool made."""
    known = {"documents": data.document_count, "tokens": len(data.tokens), "token_type": str(data.tokens.dtype)}
    if as_json:
        print(json.dumps({"prefix": data.prefix, **known}, indent=1))
        return
    _print_rows([("prefix", data.prefix), *((key, str(value)) for key, value in known.items()), ("manifest", "none")])


def _print_rows(rows: list[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def _print_document(data: IndexedTokens, found: Manifest | None, number: int) -> None:
    if not 0 <= number < data.document_count:
        raise UserError(f"--document: {number}; there are 0 to {data.document_count - 1}")
    ids = data.document(number).tolist()
    print(f"\ndocument {number}, {len(ids)} tokens: {' '.join(map(str, ids))}")
    if found is not None and Path(found.tokenizer.path).exists() and not found.tokenizer.path.endswith(".tiktoken"):
        sys.stdout.write(open_tokenizer(Path(found.tokenizer.path)).decode(ids) + "\n")
