"""A night's verdict to where people talk, as JSON with a `text`."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

from pipeline.analysis.night_report import summary_line
from pipeline.analysis.nights import SuiteNight

TIMEOUT_S = 10.0


def post(url: str, night: SuiteNight) -> None:
    """Posts one line and the cases; a server that can't be reached is said and changes no verdict."""
    cases = [
        {"case": name, "performance": case.performance, "numerics": case.numerics, "reasons": case.performance_reasons}
        for name, case in night.cases.items()
    ]
    body = json.dumps({"text": summary_line(night), "suite": night.suite, "date": night.date, "cases": cases}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass
    except (urllib.error.URLError, ValueError, OSError) as error:
        print(f"the webhook did not take it: {error}", file=sys.stderr)
