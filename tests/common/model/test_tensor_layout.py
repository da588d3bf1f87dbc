"""A model as rows: what goes in comes out, bit by bit, and whatever a stranger calls a spec is refused in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.errors import BadRequest, LimitExceeded, ModelMismatch
from glovewire.common.model.tensor_layout import ROW, ModelSpec

DTYPES = ["<f4", "<f8", "<i8", "<i4", "|u1", "|b1", "<f2", "<c8"]
SHAPES = st.lists(st.integers(0, 19), max_size=3).map(tuple)


@quick()
@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES, st.booleans()), max_size=6), st.integers(0, 1 << 30))
def test_what_is_packed_comes_out_as_it_was(drawn: list[tuple[str, tuple[int, ...], bool]], seed: int) -> None:
    random = np.random.default_rng(seed)
    values = {}
    for number, (dtype, shape, _) in enumerate(drawn):
        raw = random.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
        kept = (raw % 2).view(bool) if dtype == "|b1" else raw.view(dtype)
        values[f"t{number}"] = kept.reshape(shape)
    assume(any(value.size for value in values.values()))
    fixed = {f"t{n}" for n, (dtype, _, is_fixed) in enumerate(drawn) if is_fixed or dtype in ("<f2", "<c8")}
    spec = ModelSpec.of(values, fixed)
    trained, kept_rows = spec.pack_all(values)
    found = {**spec.unpack(trained, trained=True), **spec.unpack(kept_rows, trained=False)}
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes()
    assert len(trained) + len(kept_rows) == spec.rows
    assert ModelSpec.from_json(spec.to_json()) == spec
    some = {tensor.name: values[tensor.name] for tensor in spec.tensors if not tensor.trained and seed >> 3 & 1}
    for each in (some, dict(list(some.items())[::2])):
        rows = spec.pack(each, trained=False)
        for first, run in spec.pack_fixed(each):
            at = first - spec.trained_rows
            np.testing.assert_array_equal(rows[at : at + len(run)], run)
            rows[at : at + len(run)] = 0
        assert not rows.any()


def test_each_tensor_begins_on_a_row_and_trained_ones_come_first() -> None:
    spec = ModelSpec.of({"count": np.array(3), "w": np.zeros((ROW, 2), np.float32), "b": np.zeros(1, np.float32)})
    assert [tensor.name for tensor in spec.tensors] == ["w", "b", "count"]
    assert spec.firsts == {"w": 0, "b": 2, "count": 3}
    assert (spec.trained_rows, spec.rows, spec.parameters, spec.dtype) == (3, 4, 2 * ROW + 1, np.float32)
    assert [spec.name_of(row) for row in range(4)] == ["w", "w", "b", "count"]


def test_of_fixed_tensors_those_that_are_named_are_packed_and_neighbours_together() -> None:
    spec = ModelSpec.of({"w": np.ones(3, np.float32), **{name: np.zeros(ROW, np.int32) for name in "abcd"}})
    one = np.ones(ROW, np.int32)
    assert [(first, len(rows)) for first, rows in spec.pack_fixed({"d": one, "a": one, "b": one})] == [(1, 4), (7, 2)]
    assert spec.pack_fixed({}) == []
    with pytest.raises(BadRequest, match="tensor 'w' is trained"):
        spec.pack_fixed({"a": one, "w": np.ones(3)})


def test_a_gradient_that_is_left_out_is_zero_and_one_that_is_strange_is_named() -> None:
    spec = ModelSpec.of({"w": np.ones(3, np.float32), "b": np.ones(2, np.float32), "n": np.array(1)})
    assert spec.pack({"b": [1.0, 2.0]}, trained=True).sum() == 3.0
    for values, says in (
        ({"x": 1.0}, "no tensor is called 'x'"),
        ({"n": 1.0}, "tensor 'n' is not trained"),
        ({"b": [1.0]}, r"tensor 'b' has shape \(2,\), not \(1,\)"),
    ):
        with pytest.raises(BadRequest, match=says):
            spec.pack(values, trained=True)


def test_another_architecture_is_told_in_words() -> None:
    server = ModelSpec.of({"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)})
    for worker, says in (
        ({"w": np.ones((3, 2), np.float32)}, r"it has no 'b' \(float32, shape \(2,\)\)"),
        ({"w": np.ones((3, 4), np.float32), "b": np.ones(2, np.float32)}, r"shape \(3, 4\)\), there it is 'w'"),
        ({"b": np.ones(2, np.float32), "w": np.ones((3, 2), np.float32)}, "in another order"),
        ({f"w{n}": np.ones(1, np.float32) for n in range(5)}, "and 4 more differences"),
    ):
        with pytest.raises(ModelMismatch, match=says):
            server.require_same(ModelSpec.of(worker))


def described(**changes: Any) -> bytes:
    tensor = {"name": "w", "shape": [2, 3], "dtype": "<f4", "trained": True, **changes}
    return json.dumps([list(tensor.values())]).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[1]", b"[[1]]", b"\xff", b"[" * 5000, described(name=""), described(name="a\nb"),
        described(name=3), described(shape=[-1]), described(shape=[1.5]), described(shape="ab"), described(shape=3),
        described(shape=[1] * 40), described(dtype="O"), described(dtype="<f4,<f4"), described(dtype=">f4"),
        described(dtype="<i8"), described(dtype="<f2"), described(dtype=4), described(dtype="<M8"),
        described(trained=1), described(shape=[1 << 41]), b'[["a", [1], "<f4", false], ["b", [1], "<f4", true]]',
        b'[["a", [1], "<f4", true], ["a", [1], "<f4", true]]',
    ],
)  # fmt: skip
def test_what_is_no_spec_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        ModelSpec.from_json(data)


def test_a_spec_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="at most"):
        ModelSpec.from_json(described(shape=[1 << 39]))


@pytest.mark.parametrize("tensors", [{}, {"w": np.zeros(0, np.float32), "n": np.zeros((3, 0), np.int64)}])
def test_a_model_of_nothing_is_refused(tensors: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="at least one tensor with an element"):
        ModelSpec.of(tensors)
    listed = [[name, list(value.shape), value.dtype.str, value.dtype.kind == "f"] for name, value in tensors.items()]
    with pytest.raises(BadRequest, match="at least one tensor with an element"):
        ModelSpec.from_json(json.dumps(listed).encode())


@pytest.mark.parametrize(
    ("name", "value", "is_kept"),
    [
        ("w", 1.1, True),
        ("w", 7, True),
        ("w", True, True),
        ("w", 1 + 2j, False),
        ("w", "1.5", False),
        ("n", 7, True),
        ("n", 7.0, True),
        ("n", np.uint64(7), True),
        ("n", 1.5, False),
        ("n", float("nan"), False),
        ("n", 300, False),
        ("n", -1, False),
        ("n", "7", False),
        ("c", 1 + 2j, True),
    ],
)
def test_a_value_that_would_change_by_more_than_rounding_is_refused(name: str, value: Any, is_kept: bool) -> None:
    spec = ModelSpec.of({"w": np.float32(0), "n": np.uint8(0), "c": np.complex64(0)}, fixed=["c"])
    trained = name == "w"
    if is_kept:
        found = spec.unpack(spec.pack({name: value}, trained=trained), trained=trained)[name]
        assert abs(found - value) < 1e-6
    else:
        with pytest.raises(BadRequest, match=f"'{name}' is .* cannot hold"):
            spec.pack({name: value}, trained=trained)
        if not trained:
            with pytest.raises(BadRequest, match=f"'{name}' is .* cannot hold"):
                spec.pack_fixed({name: value})
