"""Verbs that take a request: plan, submit, run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_verb
from pipeline.conf_groups import groups, options

OVERRIDES = """overrides are key=value in Hydra's grammar, for example
  himori plan experiment=demo layout.tp=1 optimizer.lr=1e-3
  himori submit cluster=slurm experiment=demo cluster.partition=gpu cluster.constraint=h100
with -m they may name several values, and every combination is a point:
  himori plan -m hardware=dgx_h100,dgx_h200 'model=glob(llama3*)' 'sweep.where=["layout.tp is null"]'
  himori submit -m cluster=slurm experiment=demo optimizer.lr=4e-3,8e-3 'seed=range(8)'"""


def add(verbs: Verbs) -> None:
    for name, text in (
        ("plan", "show what would run: layout, resources, job script; changes nothing"),
        ("submit", "hand a run to its cluster and return at once"),
        ("run", "submit, follow and wait; on this machine unless told otherwise"),
    ):
        verb = add_verb(verbs, name, ("pipeline.commands.submit", name), text, formatter=_GroupsHelp, epilog=OVERRIDES)
        verb.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config group options and values")
        verb.add_argument("--conf-dir", type=Path, help="a further folder of config groups, searched first")
        verb.add_argument("-m", "--multirun", action="store_true", help="a sweep: overrides may name several values")
        verb.add_argument(
            "--strict-profile",
            action="store_true",
            help="a node that is not what the hardware profile expects ends the run (cluster.strict_profile=true)",
        )
        if name == "plan":
            verb.add_argument("--sort", metavar="COLUMN", help="with -m: the largest first; +COLUMN the smallest first")
            verb.add_argument("--check", action="store_true", help="ask the scheduler whether and when it would start")
            verb.add_argument("--search", action="store_true", help="try layouts for it and show the best few")
        if name != "run":
            verb.add_argument("--json", action="store_true", help="for machines")


class _GroupsHelp(argparse.RawDescriptionHelpFormatter):
    """Appends the config groups, looked up only when help is shown."""

    def format_help(self) -> str:
        listed = "\n".join(f"  {group:<12} {', '.join(options(group))}" for group in groups())
        return f"{super().format_help()}\nconfig groups, chosen with group=option\n{listed}\n"
