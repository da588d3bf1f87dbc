"""The compiled loops against plain numpy: one entry at a time by the formulas, batches by glove.py, sums of losses."""

from __future__ import annotations

import itertools
from typing import Any

import glove_reference as glove
import numpy as np
import pytest

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.dataset import ENTRY
from glovewire.worker.kernels import glove as kernels

X_MAX, ALPHA, RATE = 10.0, 0.75, 0.05
CASES = list(itertools.product(["adagrad-row", "adagrad", "sgd"], [True, False], [3, 16, 20]))
every_case = pytest.mark.parametrize(("optimizer", "tied", "dim"), CASES)


def start(optimizer: str, tied: bool, dim: int, rows: int = 6, seed: int = 1) -> tuple[RowLayout, np.ndarray]:
    """A layout, and rows of it with everything that can differ from zero."""
    options = TrainingOptions(dim=dim, tied=tied, optimizer=optimizer, seed=seed, init_scale=2.0)
    layout, draw = RowLayout.of(options), np.random.default_rng(seed)
    values = layout.initial(0, rows, options)
    for role in layout.columns[: layout.roles]:
        values[:, role[1]] = draw.normal(size=rows)
    return layout, values


def entries_of(*found: tuple[int, int, float]) -> np.ndarray:
    """Read-only, as a dataset's: for others the loops are compiled once more."""
    entries = np.array(list(found), ENTRY)
    entries.setflags(write=False)
    return entries


def train(
    layout: RowLayout, a: np.ndarray, b: np.ndarray, entries: np.ndarray, **more: Any
) -> tuple[float, float, int]:
    """All entries as one tile."""
    starts, order = np.array([0, len(entries)], np.int64), np.zeros(1, np.int64)
    given = {"symmetric": True, "diagonal": a is b, "seed": 3, "rate": RATE, "starts": starts, "order": order, **more}
    pairs, counts = kernels.as_plain_arrays(entries)
    return kernels.train_block(
        a, b, pairs, counts, given["starts"], given["order"], given["order"], given["seed"], layout.columns, layout.dim,
        layout.span, kernels.OPTIMIZERS[layout.optimizer], layout.tied, given["symmetric"], given["diagonal"], X_MAX,
        ALPHA, given["rate"],
    )  # fmt: skip


def by_hand(layout: RowLayout, u: np.ndarray, v: np.ndarray, roles: tuple[int, int], x: float) -> tuple[float, float]:
    """One step on rows u and v (float64, in place); loss and bias-only loss before it."""
    dim = layout.dim
    (pu, bu, su, tu), (pv, bv, sv, tv) = layout.columns[roles[0]].tolist(), layout.columns[roles[1]].tolist()
    vec_u, vec_v = u[pu : pu + dim].copy(), v[pv : pv + dim].copy()
    weight = float(glove.weights(x, X_MAX, ALPHA))
    floor = u[bu] + v[bv] - np.log(x)
    residual = floor + vec_u @ vec_v
    g = weight * residual
    gradient_u, gradient_v = g * vec_v, g * vec_u
    if layout.optimizer == "adagrad":
        u[su : su + dim] += gradient_u**2
        v[sv : sv + dim] += gradient_v**2
        scale_u, scale_v = np.sqrt(u[su : su + dim]), np.sqrt(v[sv : sv + dim])
    elif layout.optimizer == "adagrad-row":
        u[su] += (gradient_u**2).mean()
        v[sv] += (gradient_v**2).mean()
        scale_u, scale_v = np.sqrt(u[su]), np.sqrt(v[sv])
    else:
        scale_u = scale_v = np.float64(1)
    u[pu : pu + dim] -= RATE * gradient_u / scale_u
    v[pv : pv + dim] -= RATE * gradient_v / scale_v
    for row, bias, state in ((u, bu, tu), (v, bv, tv)):
        if layout.optimizer != "sgd":
            row[state] += g * g
        row[bias] -= RATE * g / (1.0 if layout.optimizer == "sgd" else np.sqrt(row[state]))
    return g * residual, weight * floor * floor


@every_case
@pytest.mark.parametrize("x", [0.2, 4.0, 500.0])
def test_one_entry_is_one_step_of_the_formulas(optimizer: str, tied: bool, dim: int, x: float) -> None:
    layout, a = start(optimizer, tied, dim)
    _, b = start(optimizer, tied, dim, seed=2)
    one, two = a.astype(np.float64), b.astype(np.float64)
    expected = by_hand(layout, one[4], two[1], (0, 1), x)
    found = train(layout, a, b, entries_of((4, 1, x)), symmetric=False)
    np.testing.assert_allclose(a, one, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(b, two, rtol=2e-5, atol=2e-6)
    # A residual near zero keeps only the absolute precision of float32.
    np.testing.assert_allclose(found, (*expected, 1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dim", [3, 20])
@pytest.mark.parametrize("optimizer", ["adagrad-row", "adagrad", "sgd"])
def test_a_stored_entry_stands_for_its_mirror_image_too(optimizer: str, dim: int) -> None:
    """Untied: a second step with the roles changed. Tied: the same step, counted twice."""
    for tied in (True, False):
        layout, a = start(optimizer, tied, dim)
        _, b = start(optimizer, tied, dim, seed=2)
        one, two = a.astype(np.float64), b.astype(np.float64)
        first = by_hand(layout, one[4], two[1], (0, 1), 3.0)
        second = first if tied else by_hand(layout, two[1], one[4], (0, 1), 3.0)
        loss, floor, covered = train(layout, a, b, entries_of((4, 1, 3.0)))
        np.testing.assert_allclose(a, one, rtol=5e-5, atol=5e-6)
        np.testing.assert_allclose(b, two, rtol=5e-5, atol=5e-6)
        assert covered == 2
        assert loss == pytest.approx(first[0] + second[0], rel=1e-4)
        assert floor == pytest.approx(first[1] + second[1], rel=1e-4)


def test_an_entry_on_the_diagonal_has_no_mirror_image() -> None:
    layout, rows = start("sgd", True, 3)
    assert train(layout, rows, rows, entries_of((2, 2, 3.0)))[2] == 1
    assert train(layout, rows, rows, entries_of((2, 3, 3.0)))[2] == 2


@every_case
def test_losses_are_the_sums_over_all_entries_before_any_step(optimizer: str, tied: bool, dim: int) -> None:
    """With a rate of zero nothing moves, whatever the order; the floor is the loss with the vectors at zero."""
    layout, a = start(optimizer, tied, dim, rows=40)
    _, b = start(optimizer, tied, dim, rows=40, seed=2)
    draw = np.random.default_rng(5)
    pairs = sorted({(int(i), int(j)) for i, j in draw.integers(0, 40, (300, 2))})
    entries = entries_of(*((i, j, float(draw.random() * 30 + 0.1)) for i, j in pairs))
    columns = layout.columns
    expected_loss = expected_floor = 0.0
    sides = [(a, b, entries["i"], entries["j"]), (b, a, entries["j"], entries["i"])]
    for rows_i, rows_j, i, j in sides:
        parts = (
            rows_i[i, columns[0, 0] : columns[0, 0] + dim], rows_j[j, columns[1, 0] : columns[1, 0] + dim],
            rows_i[i, columns[0, 1]], rows_j[j, columns[1, 1]], entries["x"],
        )  # fmt: skip
        parts = tuple(part.astype(np.float64) for part in parts)
        expected_loss += glove.loss(*parts, X_MAX, ALPHA) * len(entries)
        expected_floor += glove.loss(0 * parts[0], *parts[1:], X_MAX, ALPHA) * len(entries)
    vectors = a[:, : layout.parameters].copy()
    loss, floor, covered = train(layout, a, b, entries, rate=0.0)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert floor == pytest.approx(expected_floor, rel=1e-5)
    assert covered == 2 * len(entries)
    np.testing.assert_array_equal(a[:, : layout.parameters], vectors)


@pytest.mark.parametrize("tied", [True, False])
def test_losses_of_a_diagonal_block_count_the_diagonal_once(tied: bool) -> None:
    layout, rows = start("adagrad-row", tied, 16, rows=12)
    pairs = [(i, j) for i in range(12) for j in range(i, 12)]
    entries = entries_of(*((i, j, 1.0 + i + 3.0 * j) for i, j in pairs))
    full = entries_of(*((i, j, 1.0 + min(i, j) + 3.0 * max(i, j)) for i in range(12) for j in range(12)))
    (word, bias_i, *_), (context, bias_j, *_) = layout.columns.tolist()
    wide, i, j = rows.astype(np.float64), full["i"], full["j"]
    batch = (
        wide[i, word : word + 16], wide[j, context : context + 16], wide[i, bias_i], wide[j, bias_j],
        full["x"].astype(np.float64),
    )  # fmt: skip
    loss, floor, covered = train(layout, rows, rows, entries, rate=0.0)
    assert covered == len(full)
    assert loss == pytest.approx(glove.loss(*batch, X_MAX, ALPHA) * len(full), rel=1e-5)
    assert floor == pytest.approx(glove.loss(0 * batch[0], *batch[1:], X_MAX, ALPHA) * len(full), rel=1e-5)


@every_case
def test_a_block_is_learned(optimizer: str, tied: bool, dim: int) -> None:
    """Loss falls below what the biases alone can do, and stays a number."""
    layout, rows = start(optimizer, tied, dim, rows=30)
    draw = np.random.default_rng(6)
    truth = draw.normal(size=(30, 3))
    entries = entries_of(*((i, j, float(np.exp(truth[i] @ truth[j] / 2))) for i in range(30) for j in range(i, 30)))
    losses = [train(layout, rows, rows, entries, seed=epoch)[:2] for epoch in range(150)]
    assert losses[-1][0] < 0.3 * losses[0][0]
    assert losses[-1][0] < losses[-1][1]
    assert np.isfinite(rows).all()


def test_the_same_seed_gives_the_same_bytes_and_tiles_come_in_their_order() -> None:
    draw = np.random.default_rng(7)
    pairs = sorted({(int(i), int(j)) for i, j in draw.integers(0, 12, (60, 2))})
    entries = entries_of(*((i, j, 2.0 + i) for i, j in pairs))
    starts = np.array([0, 20, 20, len(entries)], np.int64)
    results = []
    for seed, order in ((1, [0, 1, 2]), (1, [0, 1, 2]), (2, [0, 1, 2]), (1, [2, 1, 0])):
        layout, a = start("adagrad-row", True, 16, rows=12)
        _, b = start("adagrad-row", True, 16, rows=12, seed=2)
        covered = train(layout, a, b, entries, seed=seed, starts=starts, order=np.array(order, np.int64))[2]
        assert covered == 2 * len(entries)
        results.append(a.tobytes())
    assert results[0] == results[1]
    assert len(set(results)) == 3


def test_padding_stays_zero() -> None:
    for optimizer, tied, dim in CASES:
        layout, rows = start(optimizer, tied, dim)
        train(layout, rows, rows, entries_of((0, 1, 3.0), (0, 2, 3.0), (0, 3, 1.0), (0, 4, 1.0), (2, 3, 7.0)))
        if dim % 16:
            for role in layout.columns[: layout.roles]:
                assert not rows[:, role[0] + dim : role[0] + layout.span].any()


# ---- minibatches


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dim", [3, 16])
def test_the_gradients_of_a_batch_are_those_of_the_reference(tied: bool, dim: int) -> None:
    layout, rows = start("sgd", tied, dim, rows=7)
    draw = np.random.default_rng(8)
    at_i, at_j = draw.integers(0, 7, 50), draw.integers(0, 7, 50)
    counts = (draw.random(50) * 40 + 0.1).astype(np.float32)
    found = np.zeros((7, layout.parameters), np.float32)
    loss, floor = kernels.batch_gradients(rows, at_i, at_j, counts, layout.columns, dim, X_MAX, ALPHA, found)
    (word, bias_i, *_), (context, bias_j, *_) = layout.columns.tolist()
    wide = rows.astype(np.float64)
    batch = (
        wide[at_i, word : word + dim], wide[at_j, context : context + dim], wide[at_i, bias_i], wide[at_j, bias_j],
        counts.astype(np.float64),
    )  # fmt: skip
    expected = np.zeros((7, layout.parameters))
    g_i, g_j, g_bi, g_bj = (part * len(counts) / 2 for part in glove.gradients(*batch, X_MAX, ALPHA))
    np.add.at(expected[:, word : word + dim], at_i, g_i)
    np.add.at(expected[:, context : context + dim], at_j, g_j)
    np.add.at(expected[:, bias_i], at_i, g_bi)
    np.add.at(expected[:, bias_j], at_j, g_bj)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert loss == pytest.approx(glove.loss(*batch, X_MAX, ALPHA) * 50, rel=1e-5)
    assert floor == pytest.approx(glove.loss(0 * batch[0], *batch[1:], X_MAX, ALPHA) * 50, rel=1e-5)


def test_the_mean_norm_is_that_of_the_word_vectors() -> None:
    layout, rows = start("adagrad-row", False, 20, rows=9)
    expected = np.linalg.norm(rows[:, :20].astype(np.float64), axis=1).mean()
    assert kernels.mean_norm(rows, layout.columns, layout.span) == pytest.approx(expected, rel=1e-5)
    assert kernels.mean_norm(rows[:0], layout.columns, layout.span) == 0.0


# ---- groups of entries that share their row


def in_a_group(layout: RowLayout, one: np.ndarray, others: np.ndarray, i: int, entries: np.ndarray) -> None:
    """One step of row i against several rows by the formulas, all gradients from the values before (float64)."""
    (pu, bu, su, tu), (pv, bv, sv, tv) = layout.columns.tolist()
    dim, u, j = layout.dim, one[i].copy(), entries["j"]
    v, x = others[j].copy(), entries["x"].astype(np.float64)
    residual = u[bu] + v[:, bv] - np.log(x) + v[:, pv : pv + dim] @ u[pu : pu + dim]
    g = glove.weights(x, X_MAX, ALPHA) * residual
    to_u, to_v = g[:, None] * v[:, pv : pv + dim], g[:, None] * u[pu : pu + dim]
    scale_u = scale_v = scale_bu = scale_bv = np.ones(1)
    if layout.optimizer == "adagrad-row":
        one[i, su] += (to_u**2).mean(1).sum()
        one[i, tu] += (g**2).sum()
        others[j, sv] += (to_v**2).mean(1)
        others[j, tv] += g**2
        scale_u, scale_bu = np.sqrt(one[i, [su]]), np.sqrt(one[i, [tu]])
        scale_v, scale_bv = np.sqrt(others[j, sv]), np.sqrt(others[j, tv])
    one[i, pu : pu + dim] -= RATE * to_u.sum(0) / scale_u
    one[i, bu] -= RATE * g.sum() / scale_bu[0]
    others[j, pv : pv + dim] -= RATE * to_v / scale_v[:, None]
    others[j, bv] -= RATE * g / scale_bv


@pytest.mark.parametrize("optimizer", ["adagrad-row", "sgd"])
@pytest.mark.parametrize("many", [2, 4, 8])
@pytest.mark.parametrize("dim", [3, 40])
def test_entries_of_a_group_step_together(optimizer: str, many: int, dim: int) -> None:
    layout, a = start(optimizer, False, dim, rows=12)
    _, b = start(optimizer, False, dim, rows=12, seed=2)
    one, two = a.astype(np.float64), b.astype(np.float64)
    entries = entries_of(*((5, 11 - n, 0.5 + 3.0 * n) for n in range(many)))
    in_a_group(layout, one, two, 5, entries)
    train(layout, a, b, entries, symmetric=False)
    np.testing.assert_allclose(a, one, rtol=3e-5, atol=3e-6)
    np.testing.assert_allclose(b, two, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_the_norms_that_steps_keep_are_those_of_the_rows(tied: bool) -> None:
    """Accumulators come from the norms: with stale ones, a block in two pieces would differ from one in one piece."""
    layout, rows = start("adagrad-row", tied, 16, rows=12)
    pieces = rows.copy()
    entries = entries_of(*((i, j, 1.0 + i + j) for i in range(12) for j in range(i, 12)))
    starts = np.array([0, 30, len(entries)], np.int64)
    train(layout, rows, rows, entries, starts=starts, order=np.array([0, 1]))
    for tile in (0, 1):
        train(layout, pieces, pieces, entries, starts=starts, order=np.array([tile]))
    np.testing.assert_allclose(rows, pieces, rtol=1e-4, atol=1e-6)


def test_groups_are_powers_of_two_of_one_row_and_words_with_themselves_stay_alone() -> None:
    of_rows = [(0, j) for j in range(13)] + [(1, 1), (1, 2), (1, 3), (1, 4)]
    pairs, _ = kernels.as_plain_arrays(entries_of(*((i, j, 1.0) for i, j in of_rows)))
    groups = np.empty(len(of_rows) + 1, np.int64)
    count = kernels.split_groups(pairs, 0, len(of_rows), kernels.MAX_GROUP, False, groups)
    assert np.diff(groups[: count + 1]).tolist() == [8, 4, 1, 4]
    count = kernels.split_groups(pairs, 0, len(of_rows), kernels.MAX_GROUP, True, groups)
    assert np.diff(groups[: count + 1]).tolist() == [1, 8, 4, 1, 2, 1]
    count = kernels.split_groups(pairs, 13, 4, 2, False, groups)
    assert np.diff(groups[: count + 1]).tolist() == [2, 2]
