"""The order in which blocks are trained: a function of (partitions, seed, epoch) and of nothing else.

An epoch is as many rounds as there are partitions. In each round every partition stands in exactly one block, so the
blocks of a round share nothing and can be trained at the same time, and a partition's version is the number of rounds
it has been through: one integer says how far every part of the table is. Pairs come from the circle method for
round-robin tournaments; a partition without a partner meets itself.
"""

from __future__ import annotations

from .random_streams import Purpose, stream

Pair = tuple[int, int]


def epoch_rounds(partitions: int, seed: int, epoch: int) -> list[list[Pair]]:
    """Blocks (a <= b) of every round of an epoch, shuffled by (seed, epoch): each pair and each diagonal once."""
    draw = stream(seed, Purpose.ROUNDS, epoch)
    names = draw.permutation(partitions).tolist()
    rounds = [[_named(pair, names) for pair in pairs] for pairs in _tournament(partitions)]
    return [[rounds[r][k] for k in draw.permutation(len(rounds[r]))] for r in draw.permutation(len(rounds))]


def _named(pair: Pair, names: list[int]) -> Pair:
    a, b = names[pair[0]], names[pair[1]]
    return (a, b) if a <= b else (b, a)


def _tournament(partitions: int) -> list[list[Pair]]:
    if partitions % 2:
        return [[(r, r), *_circle(partitions, r)] for r in range(partitions)]
    ring = partitions - 1
    rounds = [[(ring, r), *_circle(ring, r)] for r in range(ring)]
    return [*rounds, [(p, p) for p in range(partitions)]]


def _circle(ring: int, r: int) -> list[Pair]:
    return [((r + k) % ring, (r - k) % ring) for k in range(1, (ring - 1) // 2 + 1)]
