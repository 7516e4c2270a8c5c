"""Puts a program of its own in the supervisor's place: on PYTHONPATH, a run ends as it is told, without training.

For what is about the queue alone: a thousand runs that each import torch would say nothing more about it. What the
job is given and how it is started are the real thing. QUICK_SECONDS is how long a run takes; one whose seed is in
QUICK_FAIL (comma separated) fails. Its loss is the distance of the learning rate from 0.005, in decades.
"""

import math
import os
import runpy
import sys
import time
from pathlib import Path

if "KILL_AT" in os.environ:
    runpy.run_path(str(Path(__file__).parents[1] / "kill_at" / "sitecustomize.py"))

if "launchers.supervisor" in sys.orig_argv and os.environ.get("QUICK_SECONDS"):
    from pipeline.rundir import RunDir, write_json
    from pipeline.tracking.journal import Event, JournalWriter
    from pipeline.types import End, RunState

    time.sleep(float(os.environ["QUICK_SECONDS"]))
    run = RunDir(Path(sys.orig_argv[-1]))
    if os.environ.get("SLURM_PROCID", os.environ.get("SUBMITIT_LOCAL_GLOBALID")) == "0":
        import pipeline

        seed = run.read_experiment().seed
        failed = str(seed) in os.environ.get("QUICK_FAIL", "").split(",")
        state = RunState.failed if failed else RunState.finished
        attempt = run.last_attempt()
        assert attempt is not None
        (run.path / "ran-from").write_text(str(Path(pipeline.__file__).parents[1]), encoding="utf-8")
        loss = abs(math.log10(run.read_experiment().optimizer.lr / 0.005))
        data: dict[str, object] = {"step": 1, "values": {"train/loss": loss}}
        with JournalWriter(attempt.journal("local")) as journal:
            journal.append(Event("metrics", time.time(), "local", 0, data))
        write_json(attempt.end_file, End(state=state, message=f"seed {seed}", first=None, time=time.time()))
    os._exit(0)
