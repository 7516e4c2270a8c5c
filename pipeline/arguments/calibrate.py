"""The verb that learns from runs: calibrate."""

from __future__ import annotations

import argparse

from pipeline.arguments.verbs import Verbs, add_run_root, add_runs, add_verb

EXAMPLES = """examples
  himori calibrate -o ours                     all runs of the run root
  himori calibrate last 20260131 -o ours       these two
  himori calibrate --mlflow http://host:5000 -o ours
  himori plan calibration=ours experiment=…    plans with it and names its version"""


def add(verbs: Verbs) -> None:
    calibrate = add_verb(
        verbs,
        "calibrate",
        ("pipeline.commands.calibrate", "calibrate"),
        "fit the plan's speed to finished runs; says how far single runs lie from what the others predict",
        formatter=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    add_runs(calibrate, "*")
    add_run_root(calibrate)
    calibrate.add_argument("--mlflow", metavar="URI", help="read runs from this MLflow instead of run directories")
    calibrate.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="NAME",
        help="name for calibration=NAME, kept in RUN_ROOT/calibrations; or a path that ends in .yaml",
    )
    calibrate.add_argument(
        "--base",
        default="public",
        metavar="NAME",
        help="calibration that is refined: it answers for what the runs don't cover; `none` for no other runs' word "
        "(default: %(default)s)",
    )
    calibrate.add_argument(
        "--min-steps", type=int, default=20, metavar="N", help="fewest steady steps of a run (default: %(default)s)"
    )
    calibrate.add_argument("--keep-drifted", action="store_true", help="also learn from runs far off their prediction")
    calibrate.add_argument("--json", action="store_true", help="for machines")
