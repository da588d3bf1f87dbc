"""Tiles whose rows or columns are numbered anew: the steps are the same, on an array of only the rows that occur."""

from __future__ import annotations

import numpy as np
import pytest

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY
from glovewire.worker.kernels.objectives import OBJECTIVES, Tiles, renumbered

ROWS, TILE, OF_EACH = 40, 10, 6


def tiles_of_a_block() -> Tiles:
    """Four tiles with a few entries of 40 x 10 words, three of which are listed, in another order."""
    draw = np.random.default_rng(4)
    found = [
        sorted({(int(i) + TILE * tile, int(j)) for i, j in draw.integers(0, TILE, (OF_EACH, 2))})
        for tile in range(ROWS // TILE)
    ]
    starts = np.cumsum([0, *map(len, found)])
    entries = np.array([(i, j, draw.random() * 30 + 0.1) for each in found for i, j in each], ENTRY)
    entries.setflags(write=False)
    order, shares = np.array([3, 0, 2]), (np.full(ROWS, 1e-3), np.full(TILE, 1e-2))
    return Tiles(entries, shares, starts, order, order, 11, True, False)


def occurring(tiles: Tiles, side: str) -> np.ndarray:
    listed = np.concatenate([tiles.entries[side][tiles.starts[t] : tiles.starts[t + 1]] for t in tiles.order])
    return np.unique(listed).astype(np.int64)


@pytest.mark.parametrize("side", [0, 1])
def test_listed_tiles_are_copied_in_their_order_with_new_numbers(side: int) -> None:
    tiles = tiles_of_a_block()
    positions = occurring(tiles, "ij"[side])
    found = renumbered(tiles, side, positions)
    assert found.numbers.tolist() == [3, 0, 2], "the random streams of the tiles are those of the block"
    for place, tile in enumerate(found.order):
        new = found.entries[found.starts[tile] : found.starts[tile + 1]].copy()
        new["ij"[side]] = positions[new["ij"[side]]]
        number = tiles.order[place]
        assert np.array_equal(new, tiles.entries[tiles.starts[number] : tiles.starts[number + 1]])


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("objective", ["glove", "sgns"])
def test_training_on_the_rows_that_occur_is_training_on_all(objective: str, side: int) -> None:
    options = TrainingOptions.from_flags(objective=objective, dim=20, tied=False, init_scale=2.0)
    layout, tiles = RowLayout.of(options), tiles_of_a_block()
    whole = [layout.initial(0, size, options) for size in (ROWS, TILE)]
    positions = occurring(tiles, "ij"[side])
    some = [rows.copy() for rows in whole]
    some[side] = some[side][positions]
    shares = list(tiles.frequencies)
    shares[side] = shares[side][positions]
    fewer = renumbered(
        Tiles(tiles.entries, (shares[0], shares[1]), tiles.starts, tiles.order, tiles.numbers, 11, True, False),
        side,
        positions,
    )
    train = OBJECTIVES[objective]
    before = whole[side].copy()
    assert train(whole[0], whole[1], tiles, layout, options, 0.05) == train(*some, fewer, layout, options, 0.05)
    assert np.array_equal(some[1 - side], whole[1 - side])
    assert np.array_equal(some[side], whole[side][positions])
    assert not np.array_equal(whole[side], before)
    others = np.setdiff1d(np.arange(len(before)), positions)
    assert np.array_equal(whole[side][others], before[others])
