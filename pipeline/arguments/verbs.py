"""The pieces that families of verbs share."""

from __future__ import annotations

import argparse
import os
from typing import TypeAlias

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_verb(
    verbs: Verbs,
    name: str,
    target: tuple[str, str],
    text: str,
    *,
    formatter: type[argparse.HelpFormatter] = argparse.HelpFormatter,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    added = verbs.add_parser(name, help=text, description=text, formatter_class=formatter, epilog=epilog)
    added.set_defaults(verb=target)
    return added


def add_runs(verb: argparse.ArgumentParser, count: str) -> None:
    verb.add_argument("runs", nargs=count, metavar="RUN", help="run ids, unique parts of them, directories, or `last`")


def add_run_root(verb: argparse.ArgumentParser) -> None:
    default = os.environ.get("HIMORI_RUN_ROOT", "runs")
    verb.add_argument("--run-root", default=default, help="folder of run directories (default: %(default)s)")
