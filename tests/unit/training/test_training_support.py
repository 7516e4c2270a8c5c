"""What a worker refuses before it starts, whoever wrote its plan."""

from __future__ import annotations

import pytest
from training_workers import plan_for, tiny_experiment

from pipeline.errors import PlanRefused
from pipeline.training.support import refuse_broken_rules


@pytest.mark.parametrize(
    ("sequence_length", "hidden_size", "layout", "said"),
    [
        (34, 32, {"cp": 2}, "34 must be a multiple of 2 x cp 2"),
        (33, 32, {"tp": 2, "sequence_parallel": True}, "must be a multiple of tp 2"),
        (32, 30, {}, "30 is not a multiple of num_attention_heads 4"),
    ],
)
def test_what_megatron_would_get_wrong_without_a_word_is_refused(
    sequence_length: int, hidden_size: int, layout: dict[str, int], said: str
) -> None:
    experiment = tiny_experiment()
    experiment.recipe.sequence_length, experiment.model.hidden_size = sequence_length, hidden_size
    with pytest.raises(PlanRefused, match=said):
        refuse_broken_rules(experiment, plan_for(experiment, **layout).layout)


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"cp": 2}, {"dp": 4}])
def test_a_plan_within_the_rules_passes(layout: dict[str, int]) -> None:
    experiment = tiny_experiment()
    refuse_broken_rules(experiment, plan_for(experiment, **layout).layout)
