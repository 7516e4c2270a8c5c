"""One to one of several: gives each user one of its choices so that no choice is used more than it must be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


def balanced_matching(choices: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Assigns each user one of its choices; no chain of exchanges could make the loads more even.

    An optimal semi-matching (Harvey, Ladner, Lovász, Tamir 2006), built one user at a time in the mapping's order;
    earlier users and earlier choices win ties. Every user needs a choice.
    """
    assigned: dict[str, str] = {}
    for user in choices:
        _improve(user, choices, assigned)
    return assigned


def _improve(user: str, choices: Mapping[str, Sequence[str]], assigned: dict[str, str]) -> None:
    reached = _reachable(user, choices, assigned)
    loads = list(assigned.values())
    target = min(reached, key=loads.count)
    while True:
        mover = reached[target]
        left = assigned.get(mover)
        assigned[mover] = target
        if left is None:
            return
        target = left


def _reachable(user: str, choices: Mapping[str, Sequence[str]], assigned: Mapping[str, str]) -> dict[str, str]:
    """Choices that could take one more if users moved on, nearest first, each with the user that would move to it."""
    reached: dict[str, str] = {}
    waiting = deque([user])
    while waiting:
        mover = waiting.popleft()
        for choice in choices[mover]:
            if choice not in reached:
                reached[choice] = mover
                waiting.extend(other for other, theirs in assigned.items() if theirs == choice)
    return reached
