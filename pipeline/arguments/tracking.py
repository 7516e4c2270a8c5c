"""Verbs of the tracking store: sync, ui."""

from __future__ import annotations

from pipeline.arguments.verbs import Verbs, add_run_root, add_runs, add_verb


def add(verbs: Verbs) -> None:
    module = "pipeline.commands.tracking"
    sync = add_verb(verbs, "sync", (module, "sync"), "bring MLflow up to date with run directories; without RUN all")
    add_runs(sync, "*")
    ui = add_verb(verbs, "ui", (module, "ui"), "show the runs of a run root in MLflow's own UI")
    ui.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    ui.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    for verb in (sync, ui):
        add_run_root(verb)
