"""Verbs of the tracking store: sync, ui, note, tag, server."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    ui.add_argument(
        "run", nargs="?", metavar="RUN", help="open the store that this run goes to; without it that of the newest run"
    )
    note = add_verb(verbs, "note", ("pipeline.commands.annotate", "note"), "say something about a run")
    _add_run(note)
    note.add_argument("text", metavar="TEXT|-", help="what there is to say, in markdown; - reads standard input")
    tag = add_verb(verbs, "tag", ("pipeline.commands.annotate", "tag"), "put tags on a run, for filters in MLflow")
    _add_run(tag)
    tag.add_argument("tags", nargs="+", metavar="KEY=VALUE", help="a tag; KEY= removes it")
    for verb in (sync, ui, note, tag):
        add_run_root(verb)
    _add_server(verbs)


def _add_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", help="run id, a unique part of it, its directory, or `last`")


def _add_server(verbs: Verbs) -> None:
    module = "pipeline.commands.tracking_server"
    server = add_verb(verbs, "server", ("", ""), "an MLflow server for a team, with a login (docs/tracking-server.md)")
    actions = server.add_subparsers(title="actions", metavar="ACTION", required=True)
    start = add_verb(actions, "start", (module, "start"), "start it; MLFLOW_AUTH_ADMIN_PASSWORD: the admin's password")
    start.add_argument("--database", metavar="URI", help="postgresql://USER@HOST/NAME instead of sqlite in the folder")
    start.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    start.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    start.add_argument(
        "--allowed-hosts", metavar="NAMES", help="names clients may call it by, with commas; needed with another --host"
    )
    backup = add_verb(actions, "backup", (module, "backup"), "copy a server on sqlite, running or not, to a new folder")
    restore = add_verb(actions, "restore", (module, "restore"), "make a server's folder from a back-up")
    for verb, text in ((backup, "new folder for the copy"), (restore, "folder of the back-up")):
        verb.add_argument("copy", type=Path, metavar="COPY", help=text)
    for verb in (start, backup, restore):
        verb.add_argument(
            "--folder", type=Path, default=Path("mlflow-server"), help="the server's files (default: %(default)s)"
        )
