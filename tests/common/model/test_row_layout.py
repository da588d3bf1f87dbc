"""The row layout: columns that never overlap, initial rows that no sharding changes, vectors that sum their roles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.options import OPTIMIZERS, TrainingOptions
from glovewire.common.model.row_layout import RowLayout

LAYOUTS = [
    RowLayout(dim, tied, optimizer)
    for dim, tied, optimizer in itertools.product((1, 15, 16, 17, 100, 256), (True, False), OPTIMIZERS)
]
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def spans_of(layout: RowLayout) -> list[range]:
    """Every piece of a row: vectors, biases, and their states; a role that is shared counts once."""
    sizes = [layout.dim, 1]
    if layout.optimizer != "sgd":
        sizes += [layout.dim if layout.optimizer == "adagrad" else 1, 1]
    starts = layout.columns[: layout.roles].tolist()
    return [range(first, first + size) for role in starts for first, size in zip(role, sizes, strict=False)]


@every_layout
def test_pieces_of_a_row_do_not_overlap_and_stay_inside(layout: RowLayout) -> None:
    columns = [column for span in spans_of(layout) for column in span]
    assert len(columns) == len(set(columns))
    assert max(columns) < layout.width


@every_layout
def test_parameters_come_before_state(layout: RowLayout) -> None:
    assert layout.width % 16 == 0
    assert layout.parameters + layout.state <= layout.width
    vectors, biases, vector_states, bias_states = layout.columns[: layout.roles].T
    assert (vectors + layout.dim <= layout.parameters).all()
    assert (biases < layout.parameters).all()
    if layout.optimizer != "sgd":
        assert (vector_states >= layout.parameters).all()
        assert (bias_states >= layout.parameters).all()


@every_layout
def test_states_of_elementwise_adagrad_stand_as_their_parameters(layout: RowLayout) -> None:
    """The server's optimizer finds the accumulator of column k at k + parameters."""
    if layout.optimizer == "adagrad":
        np.testing.assert_array_equal(layout.columns[:, 2:], layout.columns[:, :2] + layout.parameters)


def test_tied_roles_share_their_columns() -> None:
    tied, untied = RowLayout(10, True, "adagrad-row"), RowLayout(10, False, "adagrad-row")
    np.testing.assert_array_equal(tied.columns[0], tied.columns[1])
    assert not (untied.columns[0] == untied.columns[1]).any()


def test_skip_gram_has_two_vectors_their_states_and_nothing_else() -> None:
    options = TrainingOptions.from_flags(objective="sgns", dim=20, initial_accumulator=0.25)
    layout = RowLayout.of(options)
    assert layout.columns.tolist() == [[0, -1, 64, -1], [32, -1, 65, -1]]
    assert (layout.parameters, layout.state, layout.width) == (64, 2, 80)
    assert (layout.initial(0, 5, options)[:, 64:66] == 0.25).all()


@quick(40)
@given(st.integers(0, 3000), st.integers(0, 1200), st.integers(0, 1200), st.booleans(), st.integers(0, (1 << 63) - 1))
def test_initial_rows_do_not_depend_on_the_range_asked_for(
    first: int, cut: int, more: int, tied: bool, seed: int
) -> None:
    options = TrainingOptions(dim=3, tied=tied, seed=seed)
    layout = RowLayout.of(options)
    middle, last = first + cut, first + cut + more
    whole = layout.initial(first, last, options)
    parts = [layout.initial(first, middle, options), layout.initial(middle, last, options)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert whole.shape == (last - first, layout.width)


@every_layout
def test_initial_values_are_those_that_the_options_name(layout: RowLayout) -> None:
    options = TrainingOptions.from_flags(
        schedule="minibatch", dim=layout.dim, tied=layout.tied, optimizer=layout.optimizer, init_scale=0.5,
        initial_accumulator=0.25,
    )  # fmt: skip
    rows = layout.initial(0, 1500, options)
    assert rows.dtype == np.float32
    reach = 0.5 / np.sqrt(layout.dim)
    for role in layout.columns[: layout.roles]:
        vectors = rows[:, role[0] : role[0] + layout.dim]
        assert np.abs(vectors).max() <= reach * (1 + 1e-6)
        assert np.abs(vectors).max() > 0.9 * reach
        assert abs(vectors.mean()) < 0.1 * reach
        assert not rows[:, role[1]].any()
    state = rows[:, layout.parameters : layout.parameters + layout.state]
    assert (state == (0.25 if layout.optimizer.startswith("adagrad") else 0.0)).all()
    assert len(np.unique(rows[:, 0])) > 1000


def test_another_seed_gives_other_vectors_and_roles_differ() -> None:
    options = [TrainingOptions(dim=8, tied=False, seed=seed) for seed in (1, 2)]
    layout = RowLayout.of(options[0])
    one, two = (layout.initial(0, 10, each) for each in options)
    assert not np.array_equal(one, two)
    word, context = layout.columns[:, 0]
    assert not np.array_equal(one[:, word : word + 8], one[:, context : context + 8])


@pytest.mark.parametrize("dim", [1, 10, 16, 33])
def test_the_vectors_are_the_sum_of_both_roles(dim: int) -> None:
    draw = np.random.default_rng(1)
    for tied in (True, False):
        layout = RowLayout(dim, tied, "adagrad-row")
        rows = draw.random((5, layout.width), np.float32)
        word, context = layout.columns[:, 0]
        expected = rows[:, word : word + dim]
        if not tied:
            expected = expected + rows[:, context : context + dim]
        np.testing.assert_array_equal(layout.vectors(rows), expected)
        alone = RowLayout(dim, tied, "adagrad-row", export="word")
        np.testing.assert_array_equal(alone.vectors(rows), rows[:, :dim])
