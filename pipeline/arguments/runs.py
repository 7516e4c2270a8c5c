"""Verbs that take runs: status, logs, wait, cancel, resume."""

from __future__ import annotations

from pipeline.arguments.verbs import Verbs, add_run_root, add_runs, add_verb


def add(verbs: Verbs) -> None:
    module = "pipeline.commands.runs"
    status = add_verb(
        verbs, "status", (module, "status"), "what became of runs; without RUN the newest of the run root"
    )
    add_runs(status, "*")
    status.add_argument("--all", action="store_true", help="every run of the run root, a line each, from its index")
    status.add_argument("--state", metavar="STATE", help="with --all: only runs in this state, e.g. FAILED")
    status.add_argument("--rebuild", action="store_true", help="with --all: read every run anew instead of the index")
    status.add_argument("--json", action="store_true", help="for machines")
    logs = add_verb(verbs, "logs", (module, "logs"), "what the ranks of a run printed")
    logs.add_argument("run", metavar="RUN", help="run id, a unique part of it, its directory, or `last`")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run is over")
    logs.add_argument("--rank", type=int, help="only this rank")
    logs.add_argument("--node", help="only this node")
    wait = add_verb(verbs, "wait", (module, "wait"), "wait until runs are over; exits 0, 5 (failed) or 6 (cancelled)")
    add_runs(wait, "+")
    wait.add_argument("--timeout", type=float, metavar="S", help="give up after S seconds")
    cancel = add_verb(verbs, "cancel", (module, "cancel"), "end runs, queued or running")
    add_runs(cancel, "+")
    resume = add_verb(
        verbs,
        "resume",
        ("pipeline.commands.resume", "resume"),
        "go on with a run that is over, from its last checkpoint",
    )
    resume.add_argument("run", metavar="RUN", help="run id, a unique part of it, its directory, or `last`")
    resume.add_argument("--steps", type=int, metavar="N", help="train to step N instead of the recipe's steps")
    resume.add_argument("--json", action="store_true", help="for machines")
    for verb in (status, logs, wait, cancel, resume):
        add_run_root(verb)
