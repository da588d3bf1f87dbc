"""Order the blocks of an epoch into rounds: a function of (partitions, seed, epoch) alone.

A block is a pair of partitions. An epoch has as many rounds as there are partitions. In each round every partition is
in exactly one block, so the blocks of a round share no rows and can be trained at the same time. The version of a
partition is the number of rounds it has been through. Pairs come from the circle method for round-robin tournaments; a
partition without a partner is paired with itself.
"""

from .random_streams import Purpose, stream

Pair = tuple[int, int]


def epoch_rounds(partitions: int, seed: int, epoch: int) -> list[list[Pair]]:
    """Return the blocks (a, b), a <= b, of each round of an epoch: every block once, shuffled by (seed, epoch)."""
    draw = stream(seed, Purpose.ROUNDS, epoch)
    names = draw.permutation(partitions).tolist()
    named = [[(names[a], names[b]) for a, b in pairs] for pairs in _tournament(partitions)]
    rounds = [[(min(pair), max(pair)) for pair in pairs] for pairs in named]
    return [[rounds[r][k] for k in draw.permutation(len(rounds[r]))] for r in draw.permutation(len(rounds))]


def _tournament(partitions: int) -> list[list[Pair]]:
    if partitions % 2:
        return [[(r, r), *_circle(partitions, r)] for r in range(partitions)]
    ring = partitions - 1
    rounds = [[(ring, r), *_circle(ring, r)] for r in range(ring)]
    return [*rounds, [(p, p) for p in range(partitions)]]


def _circle(ring: int, r: int) -> list[Pair]:
    return [((r + k) % ring, (r - k) % ring) for k in range(1, (ring - 1) // 2 + 1)]
