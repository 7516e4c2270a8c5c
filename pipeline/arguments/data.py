"""The verb that builds and inspects token files: data."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_verb

_EXAMPLES = """examples
  himori data build corpus/*.jsonl --tokenizer tokenizers/qwen3 -o tokens/corpus
  himori data build books/ --tokenizer o200k.tiktoken --pattern "$(cat o200k.regex)" --end none -o tokens/books
  himori run data=indexed data.path=tokens/corpus data.validation_fraction=0.01 recipe.eval_every=100"""


def add(verbs: Verbs) -> None:
    data = add_verb(verbs, "data", ("", ""), "build, show and verify token files (Megatron's .bin and .idx)")
    actions = data.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_build(actions)
    show = add_verb(
        actions, "show", ("pipeline.commands.data", "show"), "what a dataset holds, and of what it was made"
    )
    show.add_argument("--document", type=int, metavar="N", help="also print document N, counted from 0, as text")
    verify = add_verb(
        actions, "verify", ("pipeline.commands.data", "verify"), "read a dataset whole and compare digests"
    )
    for verb in (show, verify):
        verb.add_argument("prefix", metavar="PREFIX", help="path without .bin and .idx")
        verb.add_argument("--json", action="store_true", help="for machines")


def _add_build(actions: Verbs) -> None:
    build = add_verb(
        actions,
        "build",
        ("pipeline.commands.data", "build"),
        "tokenize documents; called again after it was killed, it goes on where it was",
        formatter=argparse.RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    build.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=".jsonl, .jsonl.gz, .parquet, or text (a file is a document), or folders of them",
    )
    build.add_argument("-o", "--output", required=True, metavar="PREFIX", help="writes PREFIX.bin and PREFIX.idx")
    build.add_argument(
        "--tokenizer",
        required=True,
        type=Path,
        metavar="PATH",
        help="a folder with tokenizer.json, a tokenizer.json, a .tiktoken file or a tekken.json",
    )
    build.add_argument("--key", default="text", help="field or column that holds the text (default: %(default)s)")
    build.add_argument(
        "--end",
        metavar="TOKEN",
        help="token or id behind each document, or `none` (default: the tokenizer's own end of text)",
    )
    build.add_argument(
        "--pattern", metavar="REGEX", help="how a .tiktoken file's text is cut first; `gpt2` for GPT-2's"
    )
    build.add_argument("--workers", type=int, metavar="N", help="processes (default: the CPUs this process may use)")
    build.add_argument(
        "--skip-broken", action="store_true", help="leave out documents that can't be read, and say how many"
    )
    build.add_argument("--json", action="store_true", help="for machines")
