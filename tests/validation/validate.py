"""Runs the planner over measured public configurations, writes docs/validation.md and the public calibration.

python tests/validation/validate.py training_runs.csv [--write docs/validation.md]
    [--calibration conf/hardware/calibration/public.yaml]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from guide_report import guide_section
from memory_report import memory_sections
from observed import observations, timed
from plots import write_plots
from records import read_records
from speed_report import speed_sections

from pipeline.planning.calibration import to_document
from pipeline.planning.fitting import fit

OWN = Path(__file__).with_name("own_runs.csv")
VERSION = "public-2026-11-30"
_HEAD = """\
# Validation: predicted against measured

Written by `make validate`; don't edit. Measured are public runs ({count} of {rows} rows of the table name enough of a
configuration) and {own} own ones on one H200. Errors are (predicted - measured) / measured. Of each source's recipe
only what its documents say is set (`tests/validation/records.py`); what they leave open is named where it matters.
"""
_CALIBRATION_HEAD = """\
# Corrections of the step-time model, fitted by `make validate` to public Megatron, SimuMax, torch FSDP and own runs.
# log_factor: log(measured / modelled step time) of a group, shrunk towards the wider one. Don't edit.
"""


def main() -> int:
    """Reads the table, validates, writes what was asked for."""
    arguments = _arguments()
    public, own = read_records(arguments.table), read_records(OWN)
    rows = sum(1 for _ in arguments.table.open(encoding="utf-8")) - 1
    records = [*public, *own]
    seen = observations(timed(records))
    calibration = fit(seen, VERSION)
    head = _HEAD.format(count=len(public), rows=rows, own=len(own))
    figures = arguments.write.parent / "validation" if arguments.write else None
    text = "\n".join(
        [head, *memory_sections(records), *speed_sections(seen, figures is not None), guide_section(calibration)]
    )
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")
        write_plots(records, seen, figures)
    else:
        print(text)
    if arguments.calibration:
        arguments.calibration.parent.mkdir(parents=True, exist_ok=True)
        document = yaml.safe_dump(to_document(calibration), sort_keys=False, width=110)
        arguments.calibration.write_text(_CALIBRATION_HEAD + document, encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="training_runs.csv")
    parser.add_argument("--write", type=Path, help="where the report goes; its plots go beside it")
    parser.add_argument("--calibration", type=Path, help="where the fitted calibration goes")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
