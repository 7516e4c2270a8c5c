"""note and tag: what people say about a run, kept in its directory."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.commands.program import name_of, own_name
from pipeline.rundir import RunDir, find_run
from pipeline.tracking.annotations import add_note, change_tags, parse_tags


def note(arguments: argparse.Namespace) -> int:
    """Adds a note to a run."""
    run = find_run(Path(arguments.run_root), arguments.run)
    added = add_note(run, sys.stdin.read() if arguments.text == "-" else arguments.text)
    print(f"{run.run_id}  noted, {len(added.text)} characters{_when_shown(run)}")
    return 0


def tag(arguments: argparse.Namespace) -> int:
    """Changes the tags of a run and prints those it has then."""
    run = find_run(Path(arguments.run_root), arguments.run)
    tags = change_tags(run, parse_tags(arguments.tags))
    print(f"{run.run_id}  {' '.join(f'{key}={value}' for key, value in tags.items()) or 'no tags'}{_when_shown(run)}")
    return 0


def _when_shown(run: RunDir) -> str:
    attempt = run.last_attempt()
    going_on = attempt is not None and attempt.read_end() is None
    by_itself = "MLflow shows it while the run goes on" if going_on else "MLflow does not show it yet"
    return f"; {by_itself}, and with `{own_name()} sync {name_of(run)}`"
