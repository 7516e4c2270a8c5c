"""The verb for what was submitted with -m: sweep status, table, cancel, retry."""

from __future__ import annotations

from pipeline.arguments.verbs import Verbs, add_run_root, add_verb


def add(verbs: Verbs) -> None:
    text = "what became of sweeps (submit -m): status, table, cancel, retry"
    inner = verbs.add_parser("sweep", help=text, description=text).add_subparsers(
        title="verbs", metavar="VERB", required=True
    )
    module = "pipeline.commands.sweeps"
    status = add_verb(inner, "status", (module, "status"), "how far sweeps are; without SWEEP all of the run root")
    status.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweep ids, unique parts of them, or `last`")
    table = add_verb(inner, "table", (module, "table"), "the points of a sweep: choices, state, newest numbers")
    table.add_argument("--sort", metavar="COLUMN", help="the largest first; +COLUMN the smallest first")
    cancel = add_verb(inner, "cancel", (module, "cancel"), "end what of a sweep waits or runs")
    retry = add_verb(inner, "retry", (module, "retry"), "submit again what of a sweep is missing or failed")
    for verb in (table, cancel, retry):
        verb.add_argument("sweep", metavar="SWEEP", help="sweep id, a unique part of it, or `last`")
    for verb in (status, table, retry):
        verb.add_argument("--json", action="store_true", help="for machines")
    for verb in (status, table, cancel, retry):
        add_run_root(verb)
