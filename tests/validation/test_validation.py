"""The validation tool works on the runs that stand in the repository; `make validate` runs it over a whole table."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

from memory_report import memory_error, memory_sections
from observed import measured_step_s, modelled_step_s, observations, timed
from records import cheapest, known_to_have_run, read_records
from speed_report import speed_sections

from pipeline.planning.memory import estimate_memory
from pipeline.types import Fit

OWN = read_records(Path(__file__).with_name("own_runs.csv"))


def test_own_runs_are_read_in_full() -> None:
    assert len(OWN) == 15
    assert {one.format for one in OWN} == {"bf16", "fp8"}
    assert all(known_to_have_run(one) and one.family == "own" for one in OWN)


def test_memory_of_own_runs_is_within_two_percent() -> None:
    errors = [abs(memory_error(one)) for one in OWN]
    assert max(errors) < 0.02
    assert median(errors) < 0.01


def test_own_runs_are_never_refused() -> None:
    assert all(estimate_memory(job).fit is not Fit.refused for one in OWN for job in (one.job, cheapest(one)))


def test_speed_of_own_runs_without_calibration() -> None:
    errors = [abs(math.log(measured_step_s(one) / modelled_step_s(one))) for one in OWN]
    assert max(errors) < 0.15
    assert median(errors) < 0.08


def test_the_report_has_all_sections() -> None:
    text = "\n".join([*memory_sections(OWN), *speed_sections(observations(timed(OWN)), False)])
    for title in ("peak of allocated bytes", "the gate", "step time", "Levels of the calibration"):
        assert title in text
