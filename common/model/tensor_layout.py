"""Lay out the tensors of a dense model as rows of one table. No I/O, no framework.

Tensors are stored one after the other, ROW elements per row; each begins a new row. So a large tensor spreads over
every shard, and many small tensors are sent in one message. Trained tensors come first, so that a gradient is one range
of rows. Fixed tensors (frozen layers, buffers, integers) follow; each element of the table holds 16 of their bits as an
integer, which a float represents exactly.
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..array_types import Array
from ..errors import BadRequest, LimitExceeded, ModelMismatch

ROW = 256
"""Elements per row."""
TABLE = "tensors"
MAX_TENSORS = 100_000
MAX_NAME = 512
MAX_SPEC_BYTES = 4 << 20
"""Bytes of the JSON list that declares a model; parsing it takes 25 times as much memory."""
MAX_RANK = 32
MAX_ROWS = 1 << 27
MAX_EXAMPLES = 1 << 40
"""Largest number of examples in one report."""
TRAINABLE = ("<f4", "<f8")


@dataclass(frozen=True)
class Tensor:
    """One tensor: `dtype` in numpy's notation (`<f4`); a tensor is fixed unless `trained`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool = True

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def cells(self) -> int:
        """Return how many elements of the table it takes: one per element if trained, one per 2 bytes if fixed."""
        return self.size if self.trained else -(-self.size * np.dtype(self.dtype).itemsize // 2)

    @property
    def rows(self) -> int:
        """Return how many rows of the table hold the tensor."""
        return -(-self.cells // ROW)

    def __str__(self) -> str:
        kind = "" if self.trained else " fixed"
        return f"{self.name!r} ({np.dtype(self.dtype).name}{kind}, shape {self.shape})"


@dataclass(frozen=True)
class ModelSpec:
    """The tensors of a model in the order of their rows, the trained ones first."""

    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Mapping[str, npt.ArrayLike], fixed: Collection[str] = ()) -> Self:
        """Return the spec of a model with the tensors `values`; those in `fixed`, and all integers, are not trained.

        Raises BadRequest if a name in `fixed` is not in `values`, or a dtype cannot be trained or stored.
        """
        if unknown := sorted(set(fixed) - set(values)):
            raise BadRequest(f"no tensor is called {unknown[0]!r}")
        arrays = {name: np.asarray(value) for name, value in values.items()}
        tensors = [
            Tensor(name, array.shape, array.dtype.newbyteorder("<").str, name not in fixed and array.dtype.kind == "f")
            for name, array in arrays.items()
        ]
        return cls(_checked(sorted(tensors, key=lambda tensor: not tensor.trained)))

    @classmethod
    def from_json(cls, data: Array | bytes) -> Self:
        """Parse the spec that a peer sent; any invalid bytes raise BadRequest or LimitExceeded, nothing else."""
        if len(data) > MAX_SPEC_BYTES:
            raise LimitExceeded(
                f"the list of tensors has {len(data)} bytes, at most {MAX_SPEC_BYTES}: use fewer or shorter names"
            )
        try:
            listed = json.loads(bytes(data))
            if not isinstance(listed, list):
                raise TypeError("not a list")
            tensors = [Tensor(name, tuple(shape), dtype, trained) for name, shape, dtype, trained in listed]
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRequest(f"this is no list of tensors ({type(error).__name__})") from error
        return cls(_checked(tensors))

    def to_json(self) -> npt.NDArray[np.uint8]:
        """Return `text` as UTF-8 bytes, for Create and Created messages."""
        return np.frombuffer(self.text.encode(), np.uint8)

    @property
    def text(self) -> str:
        """Return the spec as JSON, `[[name, shape, dtype, trained], ...]`, for a checkpoint."""
        return json.dumps([[t.name, t.shape, t.dtype, t.trained] for t in self.tensors])

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the table: float64 if any trained tensor is float64, else float32."""
        return np.dtype("<f8" if any(t.trained and t.dtype == "<f8" for t in self.tensors) else "<f4")

    @cached_property
    def firsts(self) -> dict[str, int]:
        """Return the first row of each tensor."""
        starts = accumulate((tensor.rows for tensor in self.tensors), initial=0)
        return {tensor.name: start for tensor, start in zip(self.tensors, starts, strict=False)}

    @cached_property
    def rows(self) -> int:
        """Return the number of rows of the whole table."""
        return sum(tensor.rows for tensor in self.tensors)

    @cached_property
    def trained_rows(self) -> int:
        """Return the number of rows of the trained tensors, which are the first rows of the table."""
        return sum(tensor.rows for tensor in self.tensors if tensor.trained)

    @property
    def parameters(self) -> int:
        """Return the number of elements of the trained tensors."""
        return sum(tensor.size for tensor in self.tensors if tensor.trained)

    def part(self, trained: bool) -> tuple[int, int]:
        """Return the first row of the trained (or fixed) tensors and the row after their last."""
        return (0, self.trained_rows) if trained else (self.trained_rows, self.rows)

    def pack(self, values: Mapping[str, npt.ArrayLike], *, trained: bool) -> Array:
        """Return the rows of all trained (or fixed) tensors, shape (rows, ROW); tensors not in `values` are zero.

        Raises BadRequest for a name that is not a trained (or fixed) tensor, a wrong shape, and values such as complex
        numbers that the tensor cannot hold.
        """
        return self._packed(self._named(values, trained), values, *self.part(trained))

    def pack_fixed(self, values: Mapping[str, npt.ArrayLike]) -> list[tuple[int, Array]]:
        """Return (first row, rows) of each contiguous run of the fixed tensors `values`; raises like `pack`."""
        runs: list[list[Tensor]] = []
        for tensor in self._named(values, trained=False):
            if not runs or self._end(runs[-1][-1]) != self.firsts[tensor.name]:
                runs.append([])
            runs[-1].append(tensor)
        return [
            ((first := self.firsts[run[0].name]), self._packed(run, values, first, self._end(run[-1]))) for run in runs
        ]

    def pack_all(self, values: Mapping[str, npt.ArrayLike]) -> tuple[Array, Array]:
        """Return the rows of the trained and of the fixed tensors; `values` holds every tensor."""
        trained, fixed = (
            self.pack({t.name: values[t.name] for t in self.tensors if t.trained is kind}, trained=kind)
            for kind in (True, False)
        )
        return trained, fixed

    def unpack(self, rows: Array, *, trained: bool) -> dict[str, Array]:
        """Return, by name, the trained (or fixed) tensors in `rows`, as `pack` made them; views if dtypes agree."""
        first, flat, found = self.part(trained)[0], rows.reshape(-1), {}
        for tensor in self.tensors:
            if tensor.trained is trained:
                start = (self.firsts[tensor.name] - first) * ROW
                cells = flat[start : start + tensor.cells]
                values = cells.astype(tensor.dtype, copy=False) if trained else _joined(tensor, cells)
                found[tensor.name] = values.reshape(tensor.shape)
        return found

    def name_of(self, row: int) -> str:
        """Return the name of the tensor that `row` belongs to."""
        return next(t.name for t in self.tensors if self.firsts[t.name] <= row < self.firsts[t.name] + t.rows)

    def require_same(self, other: Self) -> None:
        """Raise ModelMismatch, naming differences, unless a worker's spec `other` equals this spec (the server's)."""
        if self.tensors == other.tensors:
            return
        here, there = ({tensor.name: tensor for tensor in spec.tensors} for spec in (other, self))
        missing, extra = ([name for name in a if name not in b] for a, b in ((there, here), (here, there)))
        differ = [name for name in here if there.get(name, here[name]) != here[name]]
        wrong = [f"has no {there[name]}" for name in missing[:3]]
        wrong += [f"has {here[name]} too much" for name in extra[:3]]
        wrong += [f"has {here[name]}, there it is {there[name]}" for name in differ[:3]]
        wrong = wrong or ["has its tensors in another order"]
        left = len(missing) + len(extra) + len(differ) - 3
        more = f"; and {left} more differences" if left > 0 else ""
        raise ModelMismatch(f"this model is not the server's: it {'; it '.join(wrong[:3])}{more}")

    def _named(self, values: Mapping[str, npt.ArrayLike], trained: bool) -> list[Tensor]:
        """Return the trained (or fixed) tensors in `values`, in row order; BadRequest for any other name."""
        found = [tensor for tensor in self.tensors if tensor.trained is trained and tensor.name in values]
        if len(found) < len(values):
            known = {tensor.name for tensor in found}
            name = next(name for name in values if name not in known)
            if name in self.firsts:
                raise BadRequest(f"tensor {name!r} is {'not trained' if trained else 'trained'}")
            raise BadRequest(f"no tensor is called {name[:80]!r}")
        return found

    def _packed(self, tensors: list[Tensor], values: Mapping[str, npt.ArrayLike], first: int, last: int) -> Array:
        """Return rows [first, last) with the values of `tensors`, zero elsewhere; raises like `pack`."""
        rows = np.zeros((last - first, ROW), self.dtype)
        flat = rows.reshape(-1)
        for tensor in tensors:
            array = np.asarray(values[tensor.name])
            if array.shape != tensor.shape:
                raise BadRequest(f"tensor {tensor.name!r} has shape {tensor.shape}, not {array.shape}")
            _require_fit(tensor, array)
            start = (self.firsts[tensor.name] - first) * ROW
            flat[start : start + tensor.cells] = array.reshape(-1) if tensor.trained else _halves(tensor, array)
        return rows

    def _end(self, tensor: Tensor) -> int:
        """Return the row after the tensor's last row."""
        return self.firsts[tensor.name] + tensor.rows


def _require_fit(tensor: Tensor, array: Array) -> None:
    """Raise BadRequest if `tensor` cannot hold the values of `array`; only floats may change, by rounding."""
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "fc":
        fits = np.can_cast(array.dtype, dtype, "same_kind")
    else:
        with np.errstate(invalid="ignore"):
            fits = array.dtype.kind in "biuf" and np.array_equal(array.astype(dtype), array)
    if not fits:
        raise BadRequest(f"tensor {tensor.name!r} is {dtype.name}, which cannot hold these {array.dtype.name} values")


def _halves(tensor: Tensor, array: Array) -> Array:
    """Return the bytes of a fixed tensor as uint16, with a zero byte appended to an odd number."""
    data = np.ascontiguousarray(array, tensor.dtype).reshape(-1).view(np.uint8)
    if data.size % 2:
        data = np.append(data, np.uint8(0))
    return data.view("<u2")


def _joined(tensor: Tensor, cells: Array) -> Array:
    data = cells.astype("<u2").view(np.uint8)
    return data[: tensor.size * np.dtype(tensor.dtype).itemsize].view(tensor.dtype)


def _checked(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return `tensors` if a server can store them; BadRequest or LimitExceeded otherwise."""
    if len(tensors) > MAX_TENSORS:
        raise LimitExceeded(f"{len(tensors)} tensors, at most {MAX_TENSORS}")
    for tensor in tensors:
        _check(tensor)
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise BadRequest("two tensors have the same name")
    if [t.trained for t in tensors] != sorted((t.trained for t in tensors), reverse=True):
        raise BadRequest("trained tensors come first")
    rows = sum(tensor.rows for tensor in tensors)
    if rows == 0:
        raise BadRequest("a model has at least one tensor with an element")
    if rows > MAX_ROWS:
        raise LimitExceeded(f"a model has at most {MAX_ROWS * ROW:,} elements")
    return tuple(tensors)


def _check(tensor: Tensor) -> None:
    name, shape = tensor.name, tensor.shape
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        raise BadRequest(f"a tensor's name must be 1 to {MAX_NAME} printable characters")
    if len(shape) > MAX_RANK or any(type(n) is not int or not 0 <= n < 1 << 40 for n in shape):
        raise BadRequest(f"tensor {name!r} has an impossible shape")
    if type(tensor.trained) is not bool or not _is_kept(tensor.dtype):
        raise BadRequest(f"tensor {name!r} has a dtype that cannot be kept: {str(tensor.dtype)[:40]}")
    if tensor.trained and tensor.dtype not in TRAINABLE:
        raise BadRequest(f"tensor {name!r} is {np.dtype(tensor.dtype).name}: only float32 and float64 can be trained")


def _is_kept(text: object) -> bool:
    """Return whether `text` is numpy's notation of a little-endian numeric dtype."""
    if not isinstance(text, str) or not re.fullmatch(r"[<|][biufc]\d{1,2}", text):
        return False
    try:
        return np.dtype(text).str == text
    except TypeError:
        return False
