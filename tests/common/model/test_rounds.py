"""The order of strips: every partition once a sweep, a wave through the others, the same in each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.rounds import Rounds


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 25])
@pytest.mark.parametrize("local_epochs", [1, 2, 6])
def test_a_sweep_trains_the_strip_of_every_partition_once_for_its_epochs(partitions: int, local_epochs: int) -> None:
    rounds = Rounds(partitions, 6, local_epochs)
    sweeps = 6 // local_epochs
    for sweep in range(sweeps):
        numbers = range(sweep * partitions, (sweep + 1) * partitions)
        assert {rounds.sweep(round) for round in numbers} == {sweep}
        epochs = range(sweep * local_epochs, (sweep + 1) * local_epochs)
        assert {rounds.epochs_of(round) for round in numbers} == {epochs}
        assert sorted(rounds.strip(round) for round in numbers) == list(range(partitions))
    assert rounds.total == sweeps * partitions


@pytest.mark.parametrize("partitions", [1, 7])
def test_progress_rises_through_the_epochs_of_a_round_and_is_that_of_single_epochs(partitions: int) -> None:
    """So the learning rate of an epoch does not depend on how many are trained in a row."""
    single, double = Rounds(partitions, 4), Rounds(partitions, 4, local_epochs=2)
    assert [single.progress(round, round // partitions) for round in range(single.total)] == [
        round / single.total for round in range(single.total)
    ]
    found = {
        (double.strip(round), epoch): double.progress(round, epoch)
        for round in range(double.total)
        for epoch in double.epochs_of(round)
    }
    assert found == {(single.strip(round), round // partitions): round / single.total for round in range(single.total)}


@quick()
@given(st.integers(1, 12), st.integers(1, 4))
def test_a_strip_visits_its_own_partition_and_all_before_it_and_no_visit_is_forgotten(
    partitions: int, epochs: int
) -> None:
    rounds = Rounds(partitions, epochs)
    visited: list[list[int]] = [[] for _ in range(partitions)]
    for round in range(rounds.total):
        own, *others = rounds.visits(round)
        assert own == rounds.strip(round)
        assert sorted(others) == list(range(own))
        for partition in (own, *others):
            visited[partition].append(round)
    for partition, found in enumerate(visited):
        following, at = [], 0
        while (at := rounds.next_visit(partition, at)) < rounds.total:
            following.append(at)
            at += 1
        assert following == found
        assert at == rounds.total


@quick()
@given(st.integers(1, 12), st.integers(1, 4))
def test_strips_follow_each_other_like_a_wave(partitions: int, epochs: int) -> None:
    """With as many workers as strips, no strip waits for the end of another: an epoch takes the time of one strip.

    Each visit takes one unit of time, and waits for the earlier visits of its partition and of its strip.
    """
    rounds = Rounds(partitions, epochs)
    free = [0] * partitions  # when the last visit of a partition has ended
    for round in range(rounds.total):
        own, *others = rounds.visits(round)
        now = free[own] + 1
        for other in others:
            now = max(now, free[other]) + 1
            free[other] = now
        free[own] = now
    assert max(free) <= epochs * (partitions + 1) + partitions


def test_strips_are_longer_up_to_the_longest_and_shorter_again() -> None:
    """None can overtake the one before it, so neighbours are of about equal length, at the turn of an epoch too."""
    rounds = Rounds(5, 2)
    expected = [[0], [2, 1, 0], [4, 3, 1, 0, 2], [3, 1, 0, 2], [1, 0]]
    assert [rounds.visits(round) for round in range(rounds.total)] == 2 * expected


@pytest.mark.parametrize("partitions", [2, 3, 8, 25])
def test_a_strip_comes_first_to_the_partition_whose_strip_is_next(partitions: int) -> None:
    """So the next strip can begin, unless its partition is a rarer one, which this strip leaves alone."""
    rounds = Rounds(partitions, 2)
    for round in range(partitions):
        own, *others = rounds.visits(round)
        following = rounds.strip(round + 1)
        assert others[:1] == [following] or following >= own


def test_numbers_are_plain_integers() -> None:
    """They go into messages, which take nothing else."""
    rounds = Rounds(5, 1)
    assert {type(partition) for round in range(5) for partition in rounds.visits(round)} == {int}
    assert {type(rounds.next_visit(partition, 2)) for partition in range(5)} == {int}
