"""The search for hyperparameters: trials are ordinary points of a sweep, chosen by Optuna as others come to their end.

`python -P -m pipeline.commands.search SWEEP_DIR` is the driver: it keeps everything in the sweep's directory, so it can
be killed at any moment and continued by submitting the same search again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launchers.attempts import journal_events
from launchers.sweep_state import PointState, point_states
from pipeline.code_snapshot import keep_code, kept_code, read_code
from pipeline.commands.request import absolute, check_place
from pipeline.commands.search_space import Search, Study, Trial, open_study
from pipeline.commands.sweep_end import end_points
from pipeline.commands.sweep_request import SweepRequest, plan_point
from pipeline.commands.sweep_submit import submit_points
from pipeline.config import load
from pipeline.errors import ConfigError, HimoriError, PlanRefused, TrackingError
from pipeline.run_index import RunIndex
from pipeline.rundir import RunDir, read_json, read_optional, write_json
from pipeline.sweep_config import LoadedSearch
from pipeline.sweepdir import Sweep, SweepDir, SweepPoint, sweep_dir
from pipeline.tracking.store import file_lock
from pipeline.types import Point, RunState

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a search is."""

    ended: int
    pruned: int
    failed: int
    best: float | None
    best_choices: dict[str, str]


def begin_search(loaded: LoadedSearch, arguments: argparse.Namespace) -> SweepDir:
    """Writes down what is searched; the directory of one asked for before is that one. Raises UserError."""
    if "cluster" not in loaded.named_groups:
        raise ConfigError(
            "cluster: not chosen, and the default trains on this machine; give cluster=NAME (cluster=local to mean it)"
        )
    experiment = absolute(load(loaded.fixed, conf_dir=arguments.conf_dir).experiment, Path.cwd())
    run_root = Path(experiment.run_root)
    code = read_code()
    asked = json.dumps([list(loaded.fixed), [str(one) for one in loaded.dimensions], code.digest])
    folder = sweep_dir(run_root, loaded.name, f"search-{hashlib.sha256(asked.encode()).hexdigest()[:12]}")
    conf_dir = str(arguments.conf_dir.resolve()) if arguments.conf_dir else None
    if not folder.sweep_file.exists():
        keep_code(code, run_root)
        kept = Sweep(
            sweep_id=folder.sweep_id,
            name=loaded.name,
            keys=tuple(one.key for one in loaded.dimensions),
            overrides=tuple(arguments.overrides),
            conf_dir=conf_dir,
            code=code.digest,
            created_at=time.time(),
            points=(),
            left_out=(),
        )
        write_json(folder.sweep_file, kept)
    # Trials and parallel may grow from one time to the next; what is searched may not.
    write_json(
        _search_file(folder),
        Search(
            sweeper=loaded.sweeper,
            dimensions=loaded.dimensions,
            fixed=loaded.fixed,
            cwd=str(Path.cwd()),
        ),
    )
    return folder


def start_driver(folder: SweepDir) -> int:
    """Starts the driver in a session that outlives the shell; its process id. One that runs already goes on alone."""
    with (folder.path / "search.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.commands.search", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ).pid


def drive(folder: SweepDir) -> int:
    """Chooses, submits and judges trials until there are enough; 0 unless none of them came to an end."""
    try:
        with file_lock(folder.path / ".search.lock", lambda: 0.0):
            driver = _Driver(folder)
            while driver.advance():
                time.sleep(POLL_S)
            driver.say()
            return 0 if driver.progress().best is not None else 5
    except TrackingError:
        print(f"{folder.sweep_id}: is driven by another process already", flush=True)
        return 0


class _Driver:
    """One search: what Optuna knows of it, and its points."""

    def __init__(self, folder: SweepDir) -> None:
        self._folder = folder
        self._search = read_json(_search_file(folder), Search)
        self._kept = folder.read()
        self._code = kept_code(self._kept.code, folder.run_root)
        self._study: Study = open_study(folder.path / "optuna.log", self._search)
        self._said = ""

    def advance(self) -> bool:
        """One round; False once there is nothing left to do."""
        sweeper = self._search.sweeper
        running = self._study.running()
        states = self._states(running)
        for trial in running:
            self._judge(trial, states.get(trial.digest or ""))
        running = self._study.running()
        ended = self._study.ended()
        for _ in range(min(sweeper.parallel - len(running), sweeper.trials - ended - len(running))):
            self._submit(self._study.ask())
        self.say()
        return self._study.ended() < sweeper.trials

    def say(self) -> None:
        """Prints how far it is, where that has changed."""
        now = self.progress()
        best = (
            ""
            if now.best is None
            else f", best {now.best:.5g} with " + " ".join(f"{key}={value}" for key, value in now.best_choices.items())
        )
        ended = f"{now.ended} of {self._search.sweeper.trials} trials ended"
        text = f"{ended} ({now.pruned} stopped early, {now.failed} failed){best}"
        if text != self._said:
            print(text, flush=True)
            self._said = text

    def progress(self) -> Progress:
        """How far it is."""
        pruned, failed = self._study.counts()
        best = self._study.best()
        return Progress(
            ended=self._study.ended(),
            pruned=pruned,
            failed=failed,
            best=best.value if best else None,
            best_choices=best.choices if best else {},
        )

    def _states(self, running: Sequence[Trial]) -> Mapping[str, PointState]:
        digests = [trial.digest for trial in running if trial.digest]
        return point_states(self._folder, digests, RunIndex(self._folder.run_root)) if digests else {}

    def _judge(self, trial: Trial, state: PointState | None) -> None:
        """Reports what a trial has come to; ends it where it has fallen behind, closes it where it is over."""
        if state is None or state.run is None or state.label == "MISSING":
            self._submit(trial)  # its submission was cut short
            return
        step, value = self._newest(RunDir(self._folder.run_root / state.run.run_id))
        if value is not None and self._study.falls_behind(trial, step, value) and state.is_open:
            end_points(self._folder, [state])
            self._study.close_as_pruned(trial)
        elif state.run.state.is_final:
            finished = state.run.state is RunState.finished
            self._study.close(trial, value if finished else None)

    def _newest(self, run: RunDir) -> tuple[int, float | None]:
        """The newest step with the metric, and its value."""
        found: dict[int, float] = {}
        for attempt in run.attempts():
            for event in journal_events(attempt):
                values, step = event.data.get("values"), event.data.get("step")
                if event.kind == "metrics" and isinstance(values, dict) and isinstance(step, int):
                    value = values.get(self._search.sweeper.metric)
                    if isinstance(value, float | int):
                        found[step] = float(value)
        return (max(found), found[max(found)]) if found else (0, None)

    def _submit(self, trial: Trial) -> None:
        """Submits the point of a trial; one that can't run is closed as failed."""
        overrides = [*self._search.fixed, *(f"{key}={value}" for key, value in trial.choices.items())]
        conf_dir = Path(self._kept.conf_dir) if self._kept.conf_dir else None
        try:
            experiment = absolute(load(overrides, conf_dir=conf_dir).experiment, Path(self._search.cwd))
            planned = plan_point(
                Point(number=trial.number + 1, choices=dict(trial.choices), experiment=experiment), self._code
            )
            why_not = planned.request.why_untrainable()
            if why_not:
                raise PlanRefused(why_not)
            check_place(planned.request)
        except HimoriError as error:
            print(f"trial {trial.number + 1}: {error}", flush=True)
            self._study.close(trial, None)
            return
        self._note(trial, planned.digest)
        request = SweepRequest(
            name=self._kept.name,
            keys=self._kept.keys,
            planned=(planned,),
            left_out=(),
            cluster_named=True,
            code=self._code,
            run_root=self._folder.run_root,
        )
        outcome = submit_points(self._folder, request)
        if outcome.refused:
            print(f"trial {trial.number + 1}: {outcome.refused}; tried again", flush=True)

    def _note(self, trial: Trial, digest: str) -> None:
        """Writes down which point a trial is, first in the sweep, then with Optuna."""
        known = {point.digest for point in self._kept.points}
        if digest not in known:
            point = SweepPoint(number=trial.number + 1, digest=digest, choices=dict(trial.choices))
            self._kept = replace(self._kept, points=(*self._kept.points, point))
            write_json(self._folder.sweep_file, self._kept)
        self._study.note(trial, digest)


def search_of(folder: SweepDir) -> Search | None:
    """What is searched in a sweep's directory; None for an ordinary sweep."""
    return read_optional(_search_file(folder), Search)


def _search_file(folder: SweepDir) -> Path:
    return folder.path / "search.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Drives the search of a directory."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        return drive(SweepDir(Path((argv or sys.argv[1:])[0]).resolve()))
    except HimoriError as error:
        print(f"himori: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
