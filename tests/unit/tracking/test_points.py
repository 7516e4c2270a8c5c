"""The first point of a (key, step) stands; what is no point is put aside and named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tracking.journal import Event
from pipeline.tracking.points import MAX_KEY, Curves, Point, metric_key


def metrics(step: object, time: float = 1.0, **values: object) -> Event:
    return Event("metrics", time, "n1", 0, {"step": step, "values": values})


def test_points_carry_the_time_of_their_event() -> None:
    assert Curves().absorb(metrics(3, time=1.2345, loss=2)) == [Point("loss", 2.0, 3, 1234)]


def test_a_repeat_is_not_taken_and_counted_when_it_differs() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.absorb(metrics(step, loss=1.0, grad=math.nan))
    assert curves.absorb(metrics(2, loss=1.0005, grad=math.nan)) == []
    assert (curves.points, curves.repeats, curves.repeats_differ) == (6, 2, 0)
    assert curves.absorb(metrics(3, loss=1.01, grad=2.0)) == []
    assert (curves.points, curves.repeats, curves.repeats_differ) == (6, 4, 2)


def test_steps_may_come_in_any_order() -> None:
    curves = Curves()
    taken = [step for step in (5, 1, 3, 5, 4, 1, -2) if curves.absorb(metrics(step, loss=float(step)))]
    assert taken == [5, 1, 3, 4, -2]
    assert curves.repeats_differ == 0


def test_values_that_are_not_finite_are_counted_instead() -> None:
    curves = Curves()
    assert curves.absorb(metrics(7, loss=math.nan, grad=math.inf, lr=0.1)) == [
        Point("lr", 0.1, 7, 1000),
        Point("train/nonfinite_count", 2.0, 7, 1000),
    ]
    assert curves.absorb(metrics(4, loss=-math.inf))[0].value == 3.0
    assert curves.first_nonfinite_step == 4


@pytest.mark.parametrize("value", [None, "1.0", [1.0], 10**400, {}])
def test_what_is_not_a_number_is_quarantined_alone(value: object) -> None:
    curves = Curves()
    assert [point.key for point in curves.absorb(metrics(1, bad=value, good=1))] == ["good"]
    assert list(curves.quarantined) == ["bad"]


@pytest.mark.parametrize("step", [None, "1", 1.0, True, 1 << 63])
def test_an_event_without_a_step_is_quarantined(step: object) -> None:
    curves = Curves()
    assert curves.absorb(metrics(step, loss=1.0)) == []
    assert len(curves.quarantined) == 1


def test_other_events_hold_no_points() -> None:
    assert Curves().absorb(Event("phase", 1.0, "n1", 0, {"name": "build", "seconds": 1.0})) == []


@pytest.mark.parametrize("key", ["loss", "train/loss", "a b.c-d:e", "µ/ü"])
def test_a_key_that_is_taken_stays_as_it_is(key: str) -> None:
    assert metric_key(key) == key


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("lm loss (val)", "lm loss _val_-"),
        ("a//b", "a/b-"),
        ("/a/", "a-"),
        ("../x", "x-"),
        ("..", "unnamed-"),
        ("", "unnamed-"),
        ("a\n", "a_-"),
        ("k" * 251, "kkk"),
    ],
)
def test_other_keys_keep_what_is_readable(key: str, start: str) -> None:
    assert metric_key(key).startswith(start)


@given(st.text(), st.text())
def test_two_keys_never_become_one(first: str, second: str) -> None:
    assert (metric_key(first) == metric_key(second)) == (first == second)
    assert 0 < len(metric_key(first)) <= MAX_KEY
