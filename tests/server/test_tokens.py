"""Tokens prove one fact each, to those who know the secret."""

from __future__ import annotations

from itertools import product

from glovewire.server.tokens import Tokens

SMALL = range(3)


def all_of(tokens: Tokens) -> list[int]:
    return [
        *(tokens.worker(number, name, incarnation) for number, name, incarnation in product(SMALL, "ab", SMALL)),
        *(tokens.lease(*fact) for fact in product(SMALL, repeat=3)),
        *(tokens.low_water(round) for round in SMALL),
        *(tokens.receipt(*fact) for fact in product(SMALL, repeat=3)),
    ]


def test_every_fact_has_a_token_of_its_own_and_every_secret_others() -> None:
    found = all_of(Tokens(b"one")) + all_of(Tokens(b"two"))
    assert len(set(found)) == len(found)
    assert all(0 <= token < 1 << 63 for token in found)
    assert all_of(Tokens(b"one")) == all_of(Tokens(b"one"))


def test_any_integer_of_the_wire_may_be_in_a_fact() -> None:
    tokens, least, most = Tokens(b""), -(1 << 63), (1 << 63) - 1
    assert tokens.lease(least, most, least) != tokens.lease(most, least, most)
    assert tokens.worker(least, "łλ漢", most)


def test_a_receipt_is_never_the_0_of_a_push_that_has_none() -> None:
    tokens = Tokens(b"")
    assert all(tokens.receipt(shard, lease, 0) for shard in range(8) for lease in range(200))
