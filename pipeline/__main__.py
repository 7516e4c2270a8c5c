"""The command line: verbs, help and exit codes."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import __version__
from pipeline.conf_groups import groups, options
from pipeline.errors import HimoriError

EXIT_CODES = """exit codes: 0 ok, 1 a bug, 2 wrong input, 3 the cluster or a server,
5 the run failed, 6 it was cancelled, 7 the plan was refused"""

OVERRIDES = """overrides are key=value in Hydra's grammar, for example
  himori plan experiment=demo layout.tp=1 optimizer.lr=1e-3
  himori submit cluster=slurm experiment=demo cluster.partition=gpu +cluster.sbatch.constraint=h100"""


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
    _add_request_verbs(verbs)
    _add_run_verbs(verbs)
    _add_tracking_verbs(verbs)
    _add_probe(verbs)
    _add_completion(verbs)
    return top


class _GroupsHelp(argparse.RawDescriptionHelpFormatter):
    """Appends the config groups, looked up only when help is shown."""

    def format_help(self) -> str:
        listed = "\n".join(f"  {group:<12} {', '.join(options(group))}" for group in groups())
        return f"{super().format_help()}\nconfig groups, chosen with group=option\n{listed}\n"


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
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


def _add_request_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, text in (
        ("plan", "show what would run: layout, resources, job script; changes nothing"),
        ("submit", "hand a run to its cluster and return at once"),
        ("run", "submit, follow and wait; on this machine unless told otherwise"),
    ):
        verb = _verb(verbs, name, ("pipeline.commands.submit", name), text, formatter=_GroupsHelp, epilog=OVERRIDES)
        verb.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config group options and values")
        verb.add_argument("--conf-dir", type=Path, help="a further folder of config groups, searched first")
        if name == "plan":
            verb.add_argument("--search", action="store_true", help="try layouts for it and show the best few")
        if name != "run":
            verb.add_argument("--json", action="store_true", help="for machines")


def _add_run_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    module = "pipeline.commands.runs"
    status = _verb(verbs, "status", (module, "status"), "what became of runs; without RUN the newest of the run root")
    _add_runs(status, "*")
    status.add_argument("--json", action="store_true", help="for machines")
    logs = _verb(verbs, "logs", (module, "logs"), "what the ranks of a run printed")
    logs.add_argument("run", metavar="RUN", help="run id, a unique part of it, its directory, or `last`")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    logs.add_argument("--rank", type=int, help="only this rank")
    logs.add_argument("--node", help="only this node")
    wait = _verb(verbs, "wait", (module, "wait"), "wait until runs are over; exits 0, 5 (failed) or 6 (cancelled)")
    _add_runs(wait, "+")
    wait.add_argument("--timeout", type=float, metavar="S", help="give up after S seconds")
    cancel = _verb(verbs, "cancel", (module, "cancel"), "end runs, queued or running")
    _add_runs(cancel, "+")
    for verb in (status, logs, wait, cancel):
        _add_run_root(verb)


def _add_tracking_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    module = "pipeline.commands.tracking"
    sync = _verb(verbs, "sync", (module, "sync"), "bring MLflow up to date with run directories; without RUN all")
    _add_runs(sync, "*")
    ui = _verb(verbs, "ui", (module, "ui"), "show the runs of a run root in MLflow's own UI")
    ui.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    ui.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    for verb in (sync, ui):
        _add_run_root(verb)


def _add_probe(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    probe = _verb(verbs, "probe", ("pipeline.commands.probe", "probe"), "show this node and where ranks would be put")
    probe.add_argument(
        "--ranks", type=int, metavar="N", help="ranks on the node (default: one a GPU, else one a NUMA node)"
    )
    probe.add_argument(
        "--policy", default="strict", choices=("strict", "spread", "equalize", "none"), help="how cores are given out"
    )
    probe.add_argument(
        "--read",
        type=Path,
        metavar="FILE",
        help="a recording, nvidia-smi topo -m, hwloc or NCCL XML instead of this node",
    )
    probe.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="also save a recording, without names or addresses"
    )
    probe.add_argument("--json", action="store_true", help="for machines")


def _add_completion(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = 'print the completion script of a shell: eval "$(himori completion bash)"'
    completion = _verb(verbs, "completion", ("pipeline.__main__", "print_completion"), text)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def print_completion(arguments: argparse.Namespace) -> int:
    """Prints what a shell has to evaluate to complete verbs and options."""
    import shtab

    print(shtab.complete(parser(), arguments.shell))
    return 0


def _add_runs(verb: argparse.ArgumentParser, count: str) -> None:
    verb.add_argument("runs", nargs=count, metavar="RUN", help="run ids, unique parts of them, directories, or `last`")


def _add_run_root(verb: argparse.ArgumentParser) -> None:
    default = os.environ.get("HIMORI_RUN_ROOT", "runs")
    verb.add_argument("--run-root", default=default, help="folder of run directories (default: %(default)s)")


if __name__ == "__main__":
    sys.exit(main())
