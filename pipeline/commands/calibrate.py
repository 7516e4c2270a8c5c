"""calibrate: finished runs in, a calibration that plans can name out."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pipeline.analysis.learning import Finished, Fitness, Lesson, fitness, is_enough, lessons
from pipeline.calibration_files import calibration_path, find_calibration, versioned, write_calibration
from pipeline.errors import RunDirError, TrackingError, UserError
from pipeline.planning.calibration import Calibration
from pipeline.planning.fitting import FEWEST, Observation, fit
from pipeline.rundir import RunDir, find_run, list_runs, read_json, to_jsonable
from pipeline.tracking.records import current_record
from pipeline.types import RunRecord

FETCH_MODULE = "pipeline.tracking.fetch"
_WHY_NOT_SHOWN = 5


def calibrate(arguments: argparse.Namespace) -> int:
    """Fits, says how good it is, and writes the file; raises UserError where there is too little to learn from."""
    root = Path(arguments.run_root)
    path = calibration_path(arguments.output, root)
    base = find_calibration(arguments.base, root)
    with _runs(arguments, root) as runs:
        found, unreadable = _finished(runs)
    learned = [*unreadable, *lessons(found, min_steps=arguments.min_steps, keep_drifted=arguments.keep_drifted)]
    observations = [one.observation for one in learned if one.observation]
    if not is_enough(observations):
        raise UserError(_too_little(observations, learned))
    calibration = versioned(fit(observations, "", base=base), path.stem)
    judged = fitness(observations, base)
    _write(path, calibration, _comment(judged, base, learned))
    if arguments.json:
        document = {
            "version": calibration.version,
            "file": str(path),
            "base": base.version,
            "fit": to_jsonable(judged),
            "runs": [_as_plain(one) for one in learned],
        }
        print(json.dumps(document, indent=1))
    else:
        _print(calibration, path, base, judged, learned)
    return 0


# --------------------------------------------------------------------------- runs


@contextmanager
def _runs(arguments: argparse.Namespace, root: Path) -> Iterator[list[RunDir]]:
    """The runs to learn from; those of MLflow live in a temporary folder."""
    if arguments.mlflow is None:
        runs = [find_run(root, wanted) for wanted in arguments.runs] if arguments.runs else list(list_runs(root))
        if not runs:
            raise UserError(f"no runs in {root}; name another folder with --run-root, or a store with --mlflow URI")
        yield runs
        return
    with tempfile.TemporaryDirectory(prefix="himori-fetch-") as folder:
        command = [sys.executable, "-P", "-m", FETCH_MODULE, arguments.mlflow, folder]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise TrackingError(f"--mlflow: no runs could be read from {arguments.mlflow}; the lines above say why")
        kept = list(list_runs(Path(folder)))
        yield [find_run(Path(folder), wanted) for wanted in arguments.runs] if arguments.runs else kept


def _finished(runs: Sequence[RunDir]) -> tuple[list[Finished], list[Lesson]]:
    """What can be read; a damaged run is a lesson that says nothing."""
    found, unreadable = [], []
    for run in runs:
        try:
            record = current_record(run) if run.attempts() else _stored(run)
            found.append(Finished(record=record, experiment=run.read_experiment(), plan=run.read_plan()))
        except (RunDirError, FileNotFoundError) as error:
            unreadable.append(Lesson(run_id=run.run_id, observation=None, why_not=str(error)))
    return found, unreadable


def _stored(run: RunDir) -> RunRecord:
    """The record alone: what MLflow gives back has no journals."""
    return read_json(run.record_file, RunRecord)


# --------------------------------------------------------------------------- words


def _too_little(observations: Sequence[Observation], learned: Sequence[Lesson]) -> str:
    alone = ", ".join(sorted({one.groups()[2] for one in observations})) or "none"
    reasons = "; ".join(f"{one.run_id}: {one.why_not}" for one in learned if one.why_not)
    return (
        f"too little to learn from: {len(observations)} of {len(learned)} runs can be used, and no GPU and format has "
        f"{FEWEST} of them ({alone}); a correction never rests on one run{': ' if reasons else ''}{reasons}"
    )


def _comment(judged: Fitness, base: Calibration, learned: Sequence[Lesson]) -> str:
    used = [one.run_id for one in learned if one.observation]
    return (
        f"Corrections of the step-time model, fitted by `himori calibrate` on {datetime.date.today()} to {judged.runs} "
        f"runs over {base.version}.\nMedian error of the step time, each run left out: {judged.left_out:.1%} "
        f"(P90 {judged.left_out_p90:.1%}; {judged.base:.1%} before).\nRuns: {' '.join(used)}"
    )


def _write(path: Path, calibration: Calibration, comment: str) -> None:
    """The file under its name and, so that old plans can be made again, under its version."""
    try:
        write_calibration(path, calibration, comment)
        write_calibration(path.with_name(f"{calibration.version}.yaml"), calibration, comment)
    except OSError as error:
        raise UserError(f"-o: {path} can't be written ({error.strerror}); give another name or path") from error


def _print(calibration: Calibration, path: Path, base: Calibration, judged: Fitness, learned: Sequence[Lesson]) -> None:
    console = Console(highlight=False)
    unused = [one for one in learned if one.why_not]
    rows = [
        ("calibration", f"{calibration.version} over {base.version}"),
        ("file", str(path)),
        ("learned from", f"{judged.runs} runs on {', '.join(judged.groups)}"),
        (
            "median error",
            f"{judged.uncalibrated:.1%} by the model alone, {judged.base:.1%} with {base.version}, "
            f"{judged.left_out:.1%} now (each run predicted from the others; P90 {judged.left_out_p90:.1%})",
        ),
        *(("not used", f"{one.run_id}: {one.why_not}") for one in unused[:_WHY_NOT_SHOWN]),
    ]
    if len(unused) > _WHY_NOT_SHOWN:
        rows.append(("not used", f"and {len(unused) - _WHY_NOT_SHOWN} more; --json lists all"))
    if judged.left_out > judged.base:
        rows.append(("note", "the runs don't predict each other better than the base does: keep the base"))
    rows.append(("next", f"plan with calibration={path.stem if path.parent.name == 'calibrations' else path}"))
    for name, value in rows:
        console.print(f"{name:<14} {value}", soft_wrap=True, markup=False)


def _as_plain(one: Lesson) -> dict[str, object]:
    seen = one.observation
    return {
        "run_id": one.run_id,
        "used": seen is not None,
        "why_not": one.why_not,
        "group": seen.groups()[-1] if seen else None,
        "log_ratio": seen.log_ratio if seen else None,
    }
