"""Run directories of finished runs on GPUs that this machine doesn't have: planned here, measured step times given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.__main__ import parser
from pipeline.commands.request import build_request, write_run
from pipeline.rundir import RunDir, create_run_dir, write_json
from pipeline.tracking.journal import Event, JournalWriter
from pipeline.types import End, Handle, LauncherKind, RunState

H200 = ("hardware=dgx_h200", "precision=bf16", "nodes=1", "ranks=1", "model=llama3_2_1b", "recipe.sequence_length=8192")
# (micro-batch, seconds of a step of 8 samples): Llama 3.2 1B on one H200, tests/validation/own_runs.csv.
MEASURED = ((1, 65536 / 51852), (2, 65536 / 52606), (4, 65536 / 53771))


def finished_run(
    root: Path,
    overrides: Sequence[str],
    step_s: float,
    *,
    steps: int = 30,
    state: RunState = RunState.finished,
    peak_gib: float | None = None,
) -> RunDir:
    """A run that is over, as supervisors would have left it: its first step slow, the others as given."""
    request = build_request(parser().parse_args(["plan", *overrides, f"run_root={root}"]))
    run = create_run_dir(root, request.experiment.name)
    write_run(request, run)
    attempt = run.attempt(1)
    with JournalWriter(attempt.journal("n1")) as journal:
        journal.append(Event("environment", 0.0, "n1", 0, {"python": "3.12.1", "torch": "2.11.0"}))
        journal.append(Event("binding", 0.5, "n1", None, {"flags": ["EXACT"], "red": [], "warnings": []}))
        for step in range(1, steps + 1):
            values = {"train/loss": 5.0, "throughput/step_time_s": 40.0 if step == 1 else step_s}
            journal.append(Event("metrics", float(step), "n1", 0, {"step": step, "values": values}))
        if peak_gib is not None:
            for rank in range(request.plan.layout.ranks):
                peaks = {"step": 10, "allocated_gib": peak_gib - rank / 100, "reserved_gib": 1.05 * peak_gib}
                journal.append(Event("memory", 10.0, "n1", rank, peaks))
    handle = Handle(run_id=run.run_id, attempt=1, launcher=LauncherKind.local, job_id="1", submitted_at=0.0)
    write_json(attempt.handle_file, handle)
    write_json(attempt.end_file, End(state=state, message="done", first=None, time=99.0))
    return run


def measured_runs(root: Path) -> list[RunDir]:
    """Three runs on one H200 with what was measured there."""
    return [
        finished_run(root, [*H200, f"recipe.micro_batch={micro}", "recipe.global_batch=8"], step_s)
        for micro, step_s in MEASURED
    ]
