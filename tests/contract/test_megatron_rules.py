"""The planner's rules and Megatron-Core's own checks give the same answers to the same requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import megatron_rules_probe as probe
import pytest

from pipeline.planning.layout import check_request

Answers = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def megatron() -> Answers:
    command = [sys.executable, "-W", "ignore", str(Path(probe.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout)
    return answers


def broken_rules(case: probe.Case) -> set[str]:
    return {problem.rule for problem in check_request(*case.request())}


@pytest.mark.parametrize("name", probe.LEGAL)
def test_both_accept(name: str, megatron: Answers) -> None:
    assert broken_rules(probe.LEGAL[name]) == set()
    assert megatron["legal"][name] == ""


@pytest.mark.parametrize("rule", probe.ILLEGAL)
def test_both_refuse(rule: str, megatron: Answers) -> None:
    assert rule in broken_rules(probe.ILLEGAL[rule])
    assert megatron["illegal"][rule] != ""


@pytest.mark.parametrize("rule", probe.SILENT)
def test_ours_refuse_what_megatron_builds_without_a_word(rule: str, megatron: Answers) -> None:
    assert rule in broken_rules(probe.SILENT[rule])
    assert megatron["silent"][rule] == ""
