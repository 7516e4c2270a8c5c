"""The command line: verbs, help and exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from pipeline import __version__
from pipeline.arguments import (
    analysis,
    calibrate,
    data,
    export,
    nightly,
    probe,
    profile,
    request,
    runs,
    sweeps,
    tracking,
)
from pipeline.arguments.verbs import Verbs, add_verb
from pipeline.errors import HimoriError

EXIT_CODES = """exit codes: 0 ok, 1 a bug, 2 wrong input, 3 the cluster or a server, 4 worse than it should be,
5 the run failed, 6 it was cancelled, 7 the plan was refused, 8 no verdict possible, 130 interrupted"""

FAMILIES = (
    request,
    runs,
    sweeps,
    analysis,
    nightly,
    tracking,
    data,
    export,
    calibrate,
    probe,
    profile,
)
"""In the order in which help lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; the exit code."""
    arguments = parser().parse_args(argv)
    module, function = arguments.verb
    try:
        code: int = getattr(importlib.import_module(module), function)(arguments)
    except HimoriError as error:
        print(f"himori: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of a pipe had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """The command line as argparse sees it."""
    top = argparse.ArgumentParser(
        prog="himori",
        description="Plans, runs and tracks training runs of large language models, on this machine or through Slurm.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"himori {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    for family in FAMILIES:
        family.add(verbs)
    _add_completion(verbs)
    return top


def _add_completion(verbs: Verbs) -> None:
    text = 'print the completion script of a shell: eval "$(himori completion bash)"'
    completion = add_verb(verbs, "completion", ("pipeline.__main__", "print_completion"), text)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def print_completion(arguments: argparse.Namespace) -> int:
    """Prints what a shell has to evaluate to complete verbs and options."""
    import shtab

    print(shtab.complete(parser(), arguments.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
