"""Conditions over an experiment."""

from __future__ import annotations

import pytest

from pipeline.conditions import holds
from pipeline.config import load
from pipeline.errors import ConfigError

EXPERIMENT = load(["hardware=dgx_h100", "model=llama3_8b", "nodes=2", "layout.tp=4"]).experiment


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("nodes == 2", True),
        ("nodes * hardware.gpus_per_node // layout.tp == 4", True),
        ("layout.pp is null", True),
        ("layout.pp is null or layout.pp < 4", True),
        ("layout.tp is not null and layout.tp in [1, 2, 4]", True),
        ("hardware == 'dgx_h100'", True),
        ("hardware.name == 'dgx_b200'", False),
        ("optimizer.decay == 'cosine'", True),
        ("1 < nodes <= 2", True),
        ("not optimizer.distributed", False),
        ("max(nodes, 3) - abs(-1) == 2", True),
        ("(1 if nodes > 1 else 2) == 1", True),
        ("'llama' in model", True),
        ("len(cluster.setup) == 0", True),
    ],
)
def test_value(condition: str, expected: bool) -> None:
    assert holds(condition, EXPERIMENT) is expected


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("nodes ==", "can't be read"),
        ("node == 2", "no such key"),
        ("hardware.gpu_spec.__class__", "no such key"),
        ("recipe.steps.real", "no such key"),
        ("layout.pp < 4", "null"),
        ("nodes / 0 == 1", "no value"),
        ("__import__('os')", "not allowed"),
        ("[x for x in [1]]", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("nodes ** 99999999", "not allowed"),
        ("'a' * 999999999", "no number"),
        ("open('/etc/passwd')", "not allowed"),
        ("f'{nodes}'", "not allowed"),
        ("(" * 600 + "1" + ")" * 600, "characters"),
    ],
)
def test_what_means_nothing_is_refused(condition: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.where") as caught:
        holds(condition, EXPERIMENT)
    assert said in str(caught.value)
