"""Loads come out as even as any assignment could make them."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from pipeline.placement.matching import balanced_matching

CHOICES = st.lists(st.sets(st.sampled_from("ABCD"), min_size=1), max_size=6).map(
    lambda sets: {f"gpu{i}": sorted(choices) for i, choices in enumerate(sets)}
)


def loads(assigned: tuple[str, ...]) -> list[int]:
    return sorted(Counter(assigned).values(), reverse=True)


@given(CHOICES)
def test_no_assignment_is_more_even(choices: dict[str, list[str]]) -> None:
    assigned = balanced_matching(choices)
    assert all(assigned[user] in theirs for user, theirs in choices.items())
    best = min(loads(some) for some in product(*choices.values()))
    assert loads(tuple(assigned.values())) == best


def test_first_users_get_first_choices() -> None:
    assert balanced_matching({"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]}) == {"a": "x", "b": "y", "c": "x"}


def test_a_user_moves_on_for_one_that_cannot() -> None:
    assert balanced_matching({"a": ["x", "y"], "b": ["x"]}) == {"a": "y", "b": "x"}
