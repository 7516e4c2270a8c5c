"""The compact form of a snapshot says the same and refuses what it doesn't understand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from unit.placement.machines import snapshots

from pipeline.hardware.recording import format_cores, from_document, parse_cores, to_document
from pipeline.hardware.topology import NodeSnapshot, TopologyError

SMALL = {"nodes": [{"id": 0, "cpus": "0-3"}], "cores": ["0-1/2-3"], "allowed": "0-3", "mems": "0"}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_snapshot_survives_as_json(snapshot: NodeSnapshot) -> None:
    assert from_document(json.loads(json.dumps(to_document(snapshot)))) == snapshot


@pytest.mark.parametrize(
    ("cores", "runs"),
    [
        ([(0, 64), (1, 65), (2, 66)], ["0-2/64-66"]),
        ([(0,), (1,), (5,)], ["0-1", "5"]),
        ([(0, 1), (2, 3)], ["0/1", "2/3"]),
        ([(0, 4), (1, 5), (2,), (3, 7)], ["0-1/4-5", "2", "3/7"]),
    ],
)
def test_cores_as_runs(cores: list[tuple[int, ...]], runs: list[str]) -> None:
    assert format_cores(cores) == runs
    assert parse_cores(runs) == cores


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cores": ["0-3/4-5"]}, "'0-3/4-5': the lists between slashes differ in length"),
        ({"cores": None}, "key 'cores' is missing"),
        ({"allowed": "a"}, "'a' is no list of ids"),
        ({"gpu": []}, "extra fields found .gpu."),
        ({"gpus": [{"uuid": "x"}]}, r"required field missing @ \$.gpus\[0\].bdf"),
        ({"links": ["GPU0 NEAR mlx5_0"]}, "links 'GPU0 NEAR mlx5_0': expected a device, one of LOC"),
        ({"allowed": "9"}, "allowed CPUs 9: none is online"),
    ],
)
def test_malformed_recording_is_refused(change: dict[str, Any], message: str) -> None:
    document = {key: value for key, value in {**SMALL, **change}.items() if value is not None}
    with pytest.raises(TopologyError, match=message):
        from_document(document)
