"""The table: ranges and numbers, repeats, bounds, and the optimizers against plain numpy on one shard and on three."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from shards import pull, push

from glovewire.common.errors import BadRequest, GlovewireError, LimitExceeded, NotFinite
from glovewire.common.model.options import BLOCK_OPTIMIZERS, OPTIMIZERS, TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol import messages as m
from glovewire.server.table import optimizers, table
from glovewire.server.table.table import Table

WIDTH = 32
OPTIONS = TrainingOptions(dim=16, tied=True)


def make(first: int = 10, rows: int = 8, options: TrainingOptions = OPTIONS) -> Table:
    layout = RowLayout.of(options)
    values = np.random.default_rng(2).random((rows, layout.width), np.float32)
    return Table("rows", first, values, layout.parameters, optimizers.make(options))


def apply(target: Table, request: m.Push) -> None:
    target.check_push(request)
    if request.operation == "gradient":
        rows = target.local_rows(request)
        target.step(rows, request.values, request.rate, np.ones(len(rows), np.float32))
    else:
        target.apply(request)


def read(source: Table, request: m.Pull) -> np.ndarray:
    source.check_pull(request)
    return source.read(request)


def test_rows_are_read_by_range_and_by_number_as_copies() -> None:
    target = make()
    before = target.values.copy()
    part, some = read(target, pull(11, 14)), read(target, pull(rows=[17, 10, 17]))
    np.testing.assert_array_equal(part, before[1:4])
    np.testing.assert_array_equal(some, before[[7, 0, 7]])
    part[:] = some[:] = -1
    np.testing.assert_array_equal(target.values, before)
    assert read(target, pull(12, 12)).shape == (0, target.values.shape[1])
    assert read(target, pull(rows=[])).shape == (0, target.values.shape[1])


def test_rows_are_assigned_and_added_by_range_and_by_number() -> None:
    target = make()
    expected = target.values.astype(np.float64)
    width = target.values.shape[1]
    new = np.random.default_rng(4).random((3, width), np.float32)
    apply(target, push("assign", new, 10, 13))
    expected[0:3] = new
    apply(target, push("add", new, 15, 18))
    expected[5:8] += new
    apply(target, push("assign", new, rows=[17, 11, 13]))
    expected[[7, 1, 3]] = new
    np.testing.assert_allclose(target.values, expected, rtol=1e-6)


def test_rows_that_repeat_in_a_push_are_all_added() -> None:
    target = make()
    before = target.values.astype(np.float64)
    values = np.random.default_rng(4).random((5, target.values.shape[1]), np.float32)
    apply(target, push("add", values, rows=[12, 12, 11, 12, 11]))
    np.add.at(before, [2, 2, 1, 2, 1], values)
    np.testing.assert_allclose(target.values, before, rtol=1e-6)


def test_rows_that_were_given_up_are_still_counted() -> None:
    """What a shard says last of itself is how many rows it had."""
    target = make(rows=8)
    target.release()
    assert (target.rows, target.values.nbytes, target.last) == (8, 0, target.first)
    target.values = np.zeros((3, WIDTH), np.float32)
    assert target.rows == 3


def test_misaligned_and_read_only_values_are_fine() -> None:
    target = make()
    width = target.values.shape[1]
    values = np.ones((2, width), np.float32)
    misaligned = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view("<f4").reshape(2, width)
    assert not misaligned.flags.aligned
    before = target.values[:2].copy()
    apply(target, push("add", values, 10, 12))
    target.apply(dataclasses.replace(push("add", values, 10, 12), values=misaligned))
    np.testing.assert_array_equal(target.values[:2], (before + 1) + 1)


ONE = np.zeros((1, 32), np.float32)
BIG = np.iinfo(np.int64).max


@pytest.mark.parametrize(
    "request_",
    [
        pull(9, 11), pull(10, 19), pull(17, 16), pull(-5, -3), pull(BIG - 1, BIG), pull(rows=[9]), pull(rows=[18]),
        pull(rows=[-1]), pull(rows=[BIG, -BIG - 1]),
    ],
)  # fmt: skip
def test_rows_of_others_are_not_read(request_: m.Pull) -> None:
    with pytest.raises(BadRequest, match="not on this shard"):
        make().check_pull(request_)


WRONG: dict[str, tuple[m.Push, type[GlovewireError]]] = {
    "before the first": (push("add", ONE, 9, 10), BadRequest),
    "behind the last": (push("add", ONE, 18, 19), BadRequest),
    "backwards": (push("add", np.zeros((0, 32)), 12, 10), BadRequest),
    "far away": (push("add", ONE, BIG - 1, BIG), BadRequest),
    "number before": (push("add", ONE, rows=[9]), BadRequest),
    "number behind": (push("add", ONE, rows=[18]), BadRequest),
    "numbers that wrap": (push("add", np.zeros((2, 32)), rows=[BIG, -BIG - 1]), BadRequest),
    "too few values": (push("add", ONE, 10, 12), BadRequest),
    "too many values": (push("add", np.zeros((3, 32)), 10, 12), BadRequest),
    "too narrow": (push("add", np.zeros((1, 31)), 10, 11), BadRequest),
    "gradient of a whole row": (push("gradient", ONE, 10, 11), BadRequest),
    "doubles": (dataclasses.replace(push("add", ONE, 10, 11), values=np.zeros((1, 32))), BadRequest),
    "unknown operation": (push("drop", ONE, 10, 11), BadRequest),
    "gradient of rows that repeat": (push("gradient", np.zeros((2, 17)), rows=[11, 11]), BadRequest),
    "gradient of rows that fall": (push("gradient", np.zeros((2, 17)), rows=[12, 11]), BadRequest),
    "rate below zero": (push("gradient", np.zeros((1, 17)), 10, 11, rate=-0.1), BadRequest),
    "rate beyond floats": (push("gradient", np.zeros((1, 17)), 10, 11, rate=1e300), BadRequest),
    "NaN": (push("add", np.full((1, 32), np.nan), 10, 11), NotFinite),
    "infinity": (push("assign", np.full((1, 32), np.inf), 10, 11), NotFinite),
    "one infinity of many": (push("add", np.where(np.arange(32) == 31, -np.inf, 0)[None], rows=[10]), NotFinite),
    "NaN gradient": (push("gradient", np.full((1, 17), np.nan), 10, 11), NotFinite),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "kind"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_carried_out_is_refused_and_changes_nothing(
    request_: m.Push, kind: type[GlovewireError]
) -> None:
    target = make()
    assert target.values.shape[1] == WIDTH
    before = target.values.copy()
    with pytest.raises(kind):
        target.check_push(request_)
    np.testing.assert_array_equal(target.values, before)


def test_an_answer_must_fit_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_FRAME_BYTES", 3 * WIDTH * 4)
    target = make()
    target.check_pull(pull(10, 13))
    target.check_pull(pull(rows=[10, 10, 10]))
    for request in (pull(10, 14), pull(rows=[10] * 4)):
        with pytest.raises(LimitExceeded, match="4 rows do not fit"):
            target.check_pull(request)


def test_tensors_are_neither_pulled_nor_added_to_as_bfloat16() -> None:
    """Their gradients may be bfloat16, which are widened before the table sees them."""
    values = np.zeros((8, WIDTH), np.float32)
    target = Table("tensors", 10, values, WIDTH, optimizers.make(OPTIONS), parameters_only=True)
    with pytest.raises(BadRequest, match="sent as float32 alone"):
        target.check_pull(pull(10, 12, bfloat16=True))
    halves = dataclasses.replace(push("add", ONE, 10, 11), values=np.zeros((1, WIDTH), np.uint16))
    with pytest.raises(BadRequest, match="must be float32 of shape"):
        target.check_push(halves)


# ---- optimizers


def reference(rows: np.ndarray, gradient: np.ndarray, rate: float, options: TrainingOptions) -> np.ndarray:
    """One step of every row in float64, from the papers' formulas."""
    layout, out = RowLayout.of(options), rows.astype(np.float64)
    for vector, bias, vector_state, bias_state in layout.columns[: layout.roles].tolist():
        for first, size, state, pooled in ((vector, layout.dim, vector_state, True), (bias, 1, bias_state, False)):
            g = gradient[:, first : first + size].astype(np.float64)
            if options.optimizer == "sgd":
                scale = np.ones_like(g)
            elif options.optimizer == "adagrad":
                out[:, state : state + size] += g**2
                scale = np.sqrt(out[:, state : state + size])
            else:
                out[:, state] += (g**2).mean(axis=1) if pooled else (g**2).sum(axis=1)
                scale = np.sqrt(out[:, state])[:, None]
            out[:, first : first + size] -= rate * g / scale
    return out


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", BLOCK_OPTIMIZERS)
def test_a_step_is_that_of_the_papers_on_one_shard_and_on_three(optimizer: str, tied: bool) -> None:
    options = TrainingOptions(dim=10, tied=tied, optimizer=optimizer)
    layout, draw = RowLayout.of(options), np.random.default_rng(8)
    start = layout.initial(0, 20, options)
    rows = np.array([0, 3, 6, 7, 12, 13, 19])
    expected, step = start.astype(np.float64), optimizers.make(options)
    whole = Table("rows", 0, start.copy(), layout.parameters, step)
    sharding = Sharding(20, 3)
    bounds = [(sharding.bound(s), sharding.bound(s + 1)) for s in range(3)]
    pieces = [Table("rows", first, start[first:last].copy(), layout.parameters, step) for first, last in bounds]
    for _ in range(5):
        gradient = np.zeros((len(rows), layout.parameters), np.float32)
        for vector, bias, *_rest in layout.columns[: layout.roles].tolist():
            gradient[:, vector : vector + 10] = draw.normal(size=(len(rows), 10))
            gradient[:, bias] = draw.normal(size=len(rows))
        expected[rows] = reference(expected[rows], gradient, 0.1, options)
        apply(whole, push("gradient", gradient, rows=rows, rate=0.1))
        for shard, span in sharding.split_rows(rows):
            apply(pieces[shard], push("gradient", gradient[span], rows=rows[span], rate=0.1))
    np.testing.assert_allclose(whole.values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([piece.values for piece in pieces]), whole.values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_gradient_by_range_is_one_by_number(optimizer: str) -> None:
    options = TrainingOptions.from_flags(schedule="minibatch", dim=16, tied=True, optimizer=optimizer)
    one, two = make(options=options), make(options=options)
    gradient = np.random.default_rng(1).normal(size=(3, 17)).astype(np.float32)
    apply(one, push("gradient", gradient, 11, 14, rate=0.1))
    apply(two, push("gradient", gradient, rows=[11, 12, 13], rate=0.1))
    np.testing.assert_array_equal(one.values, two.values)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scale_shortens_the_step_and_leaves_the_accumulators_honest(optimizer: str) -> None:
    """Three rows from the same start: the one with a scale of a half moves half as far, and remembers as much."""
    options = TrainingOptions.from_flags(schedule="minibatch", dim=16, tied=True, optimizer=optimizer)
    target = make(options=options)
    before = target.values.copy()
    gradient = np.random.default_rng(1).normal(size=(3, 17)).astype(np.float32)
    whole = make(options=options)
    apply(whole, push("gradient", gradient, 11, 14, rate=0.1))
    target.step(np.array([1, 2, 3]), gradient, 0.1, np.array([1, 0.5, 0], np.float32))
    moved, whole_way = (after.values[1:4, :17] - before[1:4, :17] for after in (target, whole))
    np.testing.assert_allclose(moved, whole_way * [[1], [0.5], [0]], rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(target.values[1:4, 17:], whole.values[1:4, 17:])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_gradient_of_zero_on_an_accumulator_of_zero_changes_nothing(optimizer: str, tied: bool) -> None:
    """Padding, and roles that a batch did not touch."""
    options = TrainingOptions.from_flags(
        schedule="minibatch", dim=10, tied=tied, optimizer=optimizer, initial_accumulator=0.0
    )
    layout = RowLayout.of(options)
    start = layout.initial(0, 4, options)
    target = Table("rows", 0, start.copy(), layout.parameters, optimizers.make(options))
    apply(target, push("gradient", np.zeros((4, layout.parameters)), 0, 4, rate=0.1))
    if optimizer in ("adam", "adamw"):
        start[:, 3 * layout.parameters] = 1.0  # the steps of the row
    np.testing.assert_array_equal(target.values, start)
