"""Connections that share links in the model of `glovewire plan`, against arithmetic by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.plan.links import End, Links

A, B, X, Y = ("worker", 0), ("worker", 1), ("server", 0), ("server", 1)
Sent = tuple[float, End, End, float]
"""When, from where, to where, seconds of an idle link."""


def arrivals(messages: Sequence[Sent]) -> tuple[list[float], Links]:
    """When each of the messages has arrived."""
    events: list[tuple[float, int, Callable[[], None]]] = []
    number, now, found = itertools.count(), [0.0], [-1.0] * len(messages)

    def after(seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(events, (now[0] + seconds, next(number), happens))

    def arrived(index: int) -> None:
        assert found[index] < 0
        found[index] = now[0]

    flows = Links(lambda: now[0], after)
    for index, (when, source, target, seconds) in enumerate(messages):
        after(when, partial(flows.send, source, target, seconds, partial(arrived, index)))
    while events:
        now[0], _, happens = heapq.heappop(events)
        happens()
    return found, flows


def test_who_is_alone_has_the_whole_link_for_one_message_after_another() -> None:
    found, _ = arrivals([(0.0, A, X, 2.0), (0.5, A, X, 1.0), (9.0, A, X, 1.0)])
    assert found == pytest.approx([2.0, 3.0, 10.0])


def test_two_that_send_to_one_end_have_half_of_its_link_each() -> None:
    found, flows = arrivals([(0.0, A, X, 1.0), (0.0, B, X, 2.0)])
    assert found == pytest.approx([2.0, 3.0])  # from 2 on the second one is alone
    assert flows.busy == {A: 1.0, B: 2.0, X: 3.0}


def test_one_that_sends_to_two_ends_gives_each_half_of_its_link() -> None:
    assert arrivals([(0.0, A, X, 1.0), (0.0, A, Y, 1.0)])[0] == pytest.approx([2.0, 2.0])


def test_the_smaller_part_is_the_pace_and_the_rest_of_a_link_stays_idle() -> None:
    found, _ = arrivals([(0.0, A, X, 1.0), (0.0, A, Y, 1.0), (0.0, B, X, 1.0), (0.0, B, Y, 1.0)])
    assert found == pytest.approx([2.0] * 4)
    found, _ = arrivals([(0.0, A, X, 1.0), (0.0, B, X, 1.0), (0.0, B, Y, 1.0)])
    assert found == pytest.approx([2.0, 2.0, 2.0])


def test_who_comes_later_slows_down_what_is_on_its_way() -> None:
    assert arrivals([(0.0, A, X, 2.0), (1.0, B, X, 0.5)])[0] == pytest.approx([2.5, 2.0])


ENDS = st.tuples(st.floats(0, 5), st.sampled_from([A, B]), st.sampled_from([X, Y]), st.floats(0, 3))


@quick(100)
@given(st.lists(ENDS, max_size=12))
def test_everything_arrives_in_order_and_no_link_does_more_than_it_can(messages: list[Sent]) -> None:
    found, flows = arrivals(messages)
    assert all(when >= sent[0] + sent[3] - 1e-9 for when, sent in zip(found, messages, strict=True))
    for ends in itertools.product([A, B], [X, Y]):
        of_one = [(sent[0], when) for when, sent in zip(found, messages, strict=True) if sent[1:3] == ends]
        assert [when for _, when in sorted(of_one, key=lambda one: one[0])] == sorted(when for _, when in of_one)
    for end in (A, B, X, Y):
        mine = [(sent, when) for when, sent in zip(found, messages, strict=True) if end in sent[1:3]]
        work = sum(sent[3] for sent, _ in mine)
        assert flows.busy[end] == pytest.approx(work)
        if mine:
            assert max(when for _, when in mine) >= min(sent[0] for sent, _ in mine) + work - 1e-9
