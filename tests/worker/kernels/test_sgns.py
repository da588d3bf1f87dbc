"""Skip-gram's formulas against finite differences, and the compiled loops against the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import sgns_reference as reference

from glovewire.common.errors import TrainingDiverged
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.random_streams import Purpose, stream
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY
from glovewire.worker.kernels import sgns
from glovewire.worker.kernels.glove import as_plain_arrays
from glovewire.worker.kernels.objectives import OBJECTIVES, Tiles
from glovewire.worker.kernels.sgns import BUNDLE
from glovewire.worker.training.loss_sums import check_finite

K, RATE = 3.0, 0.05
OPTIONS = TrainingOptions.from_flags(objective="sgns", x_max=10.0, alpha=0.75, negatives=K)


def start(dim: int = 20, rows: int = 30, seed: int = 1) -> tuple[RowLayout, np.ndarray]:
    options = TrainingOptions.from_flags(objective="sgns", dim=dim, seed=seed, init_scale=3.0)
    layout = RowLayout.of(options)
    return layout, layout.initial(0, rows, options)


def entries_of(rows: int, count: int, triangle: bool = False, seed: int = 5) -> np.ndarray:
    draw = np.random.default_rng(seed)
    found = sorted({(int(i), int(j)) for i, j in draw.integers(0, rows, (count, 2)) if i <= j or not triangle})
    return np.array([(i, j, draw.random() * 30 + 0.1) for i, j in found], ENTRY)


def train(
    layout: RowLayout, a: np.ndarray, b: np.ndarray, entries: np.ndarray, rate: float = RATE, **more: object
) -> tuple[float, float, int]:
    entries.setflags(write=False)  # as a dataset's: for others the loops are compiled once more
    starts, order = np.array([0, len(entries)], np.int64), np.zeros(1, np.int64)
    rare = (np.zeros(len(a)), np.zeros(len(b)))
    given = {
        "frequencies": rare,
        "starts": starts,
        "order": order,
        "numbers": more.get("order", order),
        "seed": 3,
        "symmetric": True,
        "diagonal": a is b,
        **more,
    }
    return OBJECTIVES["sgns"](a, b, Tiles(entries, **given), layout, OPTIONS, rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", range(3), ids=["u", "v", "n"])
def test_gradients_are_the_slopes_of_the_loss(which: int) -> None:
    draw = np.random.default_rng(2)
    parts = [draw.normal(size=6), draw.normal(size=(4, 6)), draw.normal(size=(5, 6))]
    weights, step = np.array([0.2, 1.0, 0.0, 0.7]), 1e-6
    gradient = reference.gradients(*parts, weights, K)[which]
    slopes = np.empty_like(gradient)
    for place in np.ndindex(slopes.shape):
        losses = []
        for sign in (1, -1):
            moved = [part.copy() for part in parts]
            moved[which][place] += sign * step
            losses.append(reference.loss(*moved, weights, K))
        slopes[place] = (losses[0] - losses[1]) / (2 * step)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dim", [3, 16, 20])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_group_is_one_step_of_the_formulas(dim: int, mirrored: bool) -> None:
    layout, a = start(dim)
    _, b = start(dim, seed=2)
    roles = layout.columns[:, ::2]
    (one, one_state), (other, other_state) = roles[::-1] if mirrored else roles
    rows = np.random.default_rng(3).permutation(30)[:BUNDLE]
    pairs, negatives = rows[: sgns.POSITIVES], rows[sgns.POSITIVES :]
    weights = np.array([1.0, 0.3, 0.0, 0.8])
    u, v, n = (a[7, one : one + dim], b[pairs, other : other + dim], b[negatives, other : other + dim])
    wide = [part.astype(np.float64) for part in (u, v, n)]
    expected_a, expected_b = a.astype(np.float64), b.astype(np.float64)
    to_u, *to_others = reference.gradients(*wide, weights, K)
    expected_a[7, one_state] += (to_u**2).mean()
    expected_a[7, one : one + dim] -= RATE * to_u / np.sqrt(expected_a[7, one_state])
    for row, gradient in zip(rows, np.concatenate(to_others), strict=True):
        expected_b[row, other_state] += (gradient**2).mean()
        expected_b[row, other : other + dim] -= RATE * gradient / np.sqrt(expected_b[row, other_state])
    group = sgns.group_buffers(layout.span)
    group.others[:], group.weights[:] = rows, reference.weights_of(weights, len(negatives), K)
    loss = sgns.train_group(
        sgns.SgnsRole(a, one, one_state), sgns.SgnsRole(b, other, other_state), 7, group,
        sgns.SgnsParams(np.float32(RATE), layout.span, np.float32(1 / dim)),
    )  # fmt: skip
    assert loss == pytest.approx(reference.loss(*wide, weights, K), rel=1e-5)
    np.testing.assert_allclose(a, expected_a, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(b, expected_b, rtol=2e-5, atol=2e-6)


def test_groups_share_their_row_and_cover_every_entry() -> None:
    entries, groups = entries_of(9, 200), np.empty(400, np.int64)
    count = sgns.split_groups(as_plain_arrays(entries)[0], 10, len(entries) - 10, groups)
    pieces = np.split(entries["i"][10:], groups[1:count])
    assert groups[0] == 0
    assert groups[count] == len(entries) - 10
    assert all(0 < len(piece) <= sgns.POSITIVES and len(set(piece)) == 1 for piece in pieces)
    assert count == sum(-(-np.count_nonzero(entries["i"][10:] == i) // sgns.POSITIVES) for i in range(9))


def test_frequent_words_are_thinned_out() -> None:
    found = sgns.keep_probability(np.array([0.0, 1e-5, 1e-4, 4e-4, 1.0]), 1e-4)
    np.testing.assert_allclose(found, [1, 1, 1, 0.5, 0.01])
    assert sgns.keep_probability(np.array([0.0, 0.3, 1.0]), 1.0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("diagonal", "symmetric"), [(True, True), (False, True), (False, False)])
def test_every_pair_of_the_full_matrix_counts_once(diagonal: bool, symmetric: bool) -> None:
    """The loss at zero is log 2 for each pair and negative; with the vectors at zero it is the loss itself."""
    layout, a = start()
    b = a if diagonal else start(seed=2)[1]
    a[:, : layout.parameters] = b[:, : layout.parameters] = 0
    entries = entries_of(30, 300, triangle=diagonal)
    times = np.where(diagonal & (entries["i"] == entries["j"]), 1, 2) if symmetric else np.ones(len(entries))
    frequencies = [np.random.default_rng(side).random(30) * 2 * OPTIONS.sample for side in (0, 0 if diagonal else 1)]
    kept_a, kept_b = (np.minimum(1, (OPTIONS.sample / each) ** 0.5) for each in frequencies)
    counts = entries["x"] * kept_a[entries["i"]] * kept_b[entries["j"]]
    weights = np.minimum(counts / 10, 1) ** 0.75
    loss, floor, covered = train(layout, a, b, entries, symmetric=symmetric, frequencies=tuple(frequencies))
    assert covered == times.sum()
    assert floor == pytest.approx(np.log(2) * (1 + K) * (times * weights).sum(), rel=1e-5)
    assert loss == pytest.approx(floor, rel=1e-5)


def test_negatives_come_as_often_as_their_columns_have_entries() -> None:
    """A column without entries is never drawn, so its row never moves."""
    layout, a = start()
    before = a.copy()
    entries = np.array([(i, j, 5.0) for i in range(10) for j in range(10, 20)], ENTRY)
    train(layout, a, a, entries, diagonal=True)
    moved = (a != before).any(axis=1)
    assert moved[:20].all()
    assert not moved[20:].any()


def test_draws_are_even() -> None:
    state, found = 9, []
    for _ in range(3000):
        state, number = sgns.next_random(np.uint64(state), 3)
        found.append(number)
    assert np.bincount(found).tolist() == pytest.approx([1000, 1000, 1000], abs=120)


def test_the_same_seed_gives_the_same_bytes_however_the_tiles_are_handed_over() -> None:
    entries, starts = entries_of(30, 300), np.array([0, 90, 90, 180], np.int64)
    results = []
    for seed, orders in ((1, [[0, 1, 2]]), (1, [[0], [1, 2]]), (2, [[0, 1, 2]]), (1, [[2, 1, 0]])):
        (layout, a), (_, b) = start(), start(seed=2)
        for order in orders:
            train(layout, a, b, entries, seed=seed, starts=starts, order=np.array(order, np.int64))
        results.append(a.tobytes())
    assert results[0] == results[1]
    assert len(set(results)) == 3


def test_a_block_is_learned_and_the_padding_stays_zero() -> None:
    """Words that occur with the same words come together; words that do not, part."""
    layout, rows = start(dim=5)
    sides = stream(0, Purpose.TILES, 1).permutation(30) % 2
    entries = np.array([(i, j, 9.0) for i in range(30) for j in range(i, 30) if sides[i] == sides[j]], ENTRY)
    losses = [train(layout, rows, rows, entries, seed=epoch, rate=0.3)[:2] for epoch in range(20)]
    assert losses[-1][0] < 0.9 * losses[0][0]
    assert losses[-1][0] < losses[-1][1]
    vectors = layout.vectors(rows)
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    same = sides[:, None] == sides
    assert cosines[same].mean() > cosines[~same].mean() + 0.5
    assert not rows[:, layout.dim : layout.span].any()
    assert not rows[:, layout.span + layout.dim : 2 * layout.span].any()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_is_seen_in_the_loss(poison: float) -> None:
    layout, rows = start()
    rows[3, 0] = poison
    loss = sum(train(layout, rows, rows, entries_of(30, 300, triangle=True))[0] for _ in range(2))
    with pytest.raises(TrainingDiverged):
        check_finite(loss, "a block")
