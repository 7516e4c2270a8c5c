"""Verbs of the night: nightly, baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.arguments.verbs import Verbs, add_run_root, add_verb


def add(verbs: Verbs) -> None:
    nightly = _verb(verbs, "nightly", "run a suite and judge it by its history; exits 4 on a regression")
    nightly.add_argument("--webhook", metavar="URL", help="also post the verdict there, as JSON with a `text`")
    baseline = _verb(verbs, "baseline", "what counts as normal: `baseline set` promotes a night and its curves")
    baseline.add_argument("--case", metavar="NAME", action="append", help="only this case; may be repeated")


def _verb(verbs: Verbs, name: str, text: str) -> argparse.ArgumentParser:
    verb = add_verb(verbs, name, ("pipeline.commands.nightly", name), text)
    if name == "baseline":
        verb.add_argument("action", choices=("set", "show"), help="promote, or show what was promoted")
    verb.add_argument("suite", metavar="suite=NAME", help="a file of conf/suite")
    verb.add_argument("--conf-dir", type=Path, help="a further folder of config groups, searched first")
    verb.add_argument("--date", metavar="YYYY-MM-DD", help="the night (default: today; for baseline set the newest)")
    add_run_root(verb)
    return verb
