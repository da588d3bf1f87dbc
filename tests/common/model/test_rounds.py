"""The tournament of partitions: every pair once an epoch, every partition once a round, fixed by (seed, epoch)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.rounds import epoch_rounds


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 5, 8, 9, 16, 25])
def test_every_pair_and_every_diagonal_is_met_once(partitions: int) -> None:
    met = Counter(pair for pairs in epoch_rounds(partitions, 3, 1) for pair in pairs)
    assert met == Counter(combinations_with_replacement(range(partitions), 2))


@quick()
@given(st.integers(1, 30), st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 20))
def test_every_partition_stands_in_every_round_once(partitions: int, seed: int, epoch: int) -> None:
    rounds = epoch_rounds(partitions, seed, epoch)
    assert len(rounds) == partitions
    for pairs in rounds:
        standing = [partition for pair in pairs for partition in {*pair}]
        assert sorted(standing) == list(range(partitions))
        assert all(a <= b for a, b in pairs)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = [epoch_rounds(9, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]
    assert orders[2] != orders[3]


def test_numbers_are_plain_integers() -> None:
    """They go into messages, which take nothing else."""
    assert {type(partition) for pairs in epoch_rounds(5, 0, 0) for pair in pairs for partition in pair} == {int}
