"""Whole kinds of jobs get the same answer from the planner's rules and from Megatron-Core's configuration classes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import megatron_config_probe as probe
import pytest

# What ours refuse and the classes let pass: Megatron-Core finds it later, or not at all.
LATER = {
    "vp": "chunks of one stage: the model is built, the schedule is the plain one",
    "vp_micro_batches": "asserted by the interleaved schedule in the first step",
    "etp": "asserted when the experts' weights are divided; ignored without experts",
    "moe_sequence_parallel": "a warning of the class, an error of the layer",
    "num_query_groups": "the classes replicate groups that tp can't divide; the planner doesn't count that",
    "cp_heads": "Transformer Engine refuses it in the first step",
    "param_remainders": "ignored without a word",
    "recompute_modules": "modules that the model doesn't have are ignored without a word, as are those of no recompute",
    "recompute_num_layers": "cut to the layers there are",
    "recompute_bias": "hangs in the backward pass",
    "recompute_graphs": "refused by the class from 0.17 on",
    "fsdp_pp": "asserted by the training script",
    "fsdp_optimizer": "asserted by the training script",
}


NEVER_LEGAL = {
    "recompute_modules": {"['nothing']"},
    "recompute_num_layers": {"5"},
    "activation_offload_layers": {"8"},
    "ep": {"3"},
}


@pytest.fixture(scope="module")
def answers() -> list[tuple[probe.Case, set[str], str]]:
    """(case, rules of ours that it breaks, what Megatron-Core has against it)."""
    command = [sys.executable, "-W", "ignore", str(Path(probe.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    theirs: list[str] = json.loads(done.stdout)
    cases = probe.cases()
    return [(case, probe.our_answer(probe.case_job(case)), said) for case, said in zip(cases, theirs, strict=True)]


def test_what_ours_accept_megatron_accepts(answers: list[tuple[probe.Case, set[str], str]]) -> None:
    wrong = Counter(said for _, ours, said in answers if said and not ours)
    assert not wrong


def test_what_megatron_accepts_ours_refuse_only_for_a_reason(answers: list[tuple[probe.Case, set[str], str]]) -> None:
    unexplained = Counter(rule for _, ours, said in answers if not said for rule in ours if not ours & set(LATER))
    assert not unexplained


def test_every_reason_is_met(answers: list[tuple[probe.Case, set[str], str]]) -> None:
    assert set(LATER) == {rule for _, ours, said in answers if not said for rule in ours if ours <= set(LATER)}


def test_both_answers_are_common(answers: list[tuple[probe.Case, set[str], str]]) -> None:
    legal = sum(not ours for _, ours, _ in answers)
    refused = sum(bool(said) for _, _, said in answers)
    assert legal > len(answers) / 10
    assert refused > len(answers) / 10


@pytest.mark.parametrize("key", probe.KINDS)
def test_every_kind_was_tried_on_a_legal_job(key: str, answers: list[tuple[probe.Case, set[str], str]]) -> None:
    legal = {str(words[key]) for (_, words), ours, said in answers if not ours and not said}
    assert {str(value) for value in probe.KINDS[key]} - legal <= NEVER_LEGAL.get(key, set())
