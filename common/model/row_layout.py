"""Lay out a row of the table: vectors, biases and the optimizer's state, all float32.

A row holds everything about one word, so that a pull or push transfers it in one piece. Vectors and rows are padded to
multiples of 16 floats for SIMD instructions. Initial values depend on (seed, row) alone, not on the number of shards.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ..array_types import Indices, Rows
from .options import TrainingOptions
from .random_streams import Purpose, stream

PAD_FLOATS = 16
_CHUNK_ROWS = 1024


def state_columns(optimizer: str, parameters: int) -> int:
    """Return the number of state columns of an optimizer that keeps the same state for each of `parameters` columns.

    Adam keeps the mean gradient and mean squared gradient of each, and in one last column the row's number of steps.
    """
    each = {"sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "adam": 2, "adamw": 2}[optimizer]
    return each * parameters + (each == 2)


@dataclass(frozen=True)
class RowLayout:
    """Columns of a row. A word has two roles, word and context, which share their columns if `tied`."""

    dim: int
    tied: bool
    optimizer: str
    biases: bool = True
    export: str = "sum"

    @classmethod
    def of(cls, options: TrainingOptions) -> Self:
        """Return the layout for a training with these options."""
        return cls(options.dim, options.tied, options.optimizer, options.objective != "sgns", options.export)

    @property
    def span(self) -> int:
        """Return the number of floats in a vector: `dim`, padded with zeros that stay zero."""
        return -(-self.dim // PAD_FLOATS) * PAD_FLOATS

    @property
    def roles(self) -> int:
        """Return 1 if a word has one vector, 2 if it has one as a word and one as a context."""
        return 1 if self.tied else 2

    @property
    def parameters(self) -> int:
        """Return the number of leading columns that are parameters: vectors, then biases; state follows."""
        return self.roles * (self.span + self.biases)

    @property
    def state(self) -> int:
        """Return the number of columns of optimizer state."""
        if self.optimizer == "adagrad-row":
            return self.roles * (1 + self.biases)
        return state_columns(self.optimizer, self.parameters)

    @property
    def width(self) -> int:
        """Return the number of floats in a row, padding included."""
        return -(-(self.parameters + self.state) // PAD_FLOATS) * PAD_FLOATS

    @cached_property
    def columns(self) -> Indices:
        """Return the first column of (vector, bias, vector state, bias state) for both roles, shape (2, 4).

        Without biases, the bias and bias state columns are -1.
        """
        table = []
        for role in range(2):
            role = 0 if self.tied else role
            vector, bias = role * self.span, self.roles * self.span + role
            if self.optimizer == "adagrad":
                states = (self.parameters + vector, self.parameters + bias)
            else:
                states = (self.parameters + role, self.parameters + self.roles + role)
            table.append((vector, bias, *states) if self.biases else (vector, -1, states[0], -1))
        return np.array(table, np.int64)

    def initial(self, first: int, last: int, options: TrainingOptions) -> Rows:
        """Return the initial values of rows [first, last), shape (last - first, width).

        Vectors are uniform in +-init_scale / sqrt(dim), biases zero, accumulators `initial_accumulator`.
        """
        rows = np.zeros((last - first, self.width), np.float32)
        scale = 2 * options.init_scale / np.sqrt(self.dim)
        for start in range(first - first % _CHUNK_ROWS, last, _CHUNK_ROWS):
            draw = stream(options.seed, Purpose.ROWS, start)
            chunk = (draw.random((_CHUNK_ROWS, self.roles, self.dim), np.float32) - 0.5) * scale
            low, high = max(start, first), min(start + _CHUNK_ROWS, last)
            for role in range(self.roles):
                into = slice(role * self.span, role * self.span + self.dim)
                rows[low - first : high - first, into] = chunk[low - start : high - start, role]
        if self.optimizer.startswith("adagrad"):
            rows[:, self.parameters : self.parameters + self.state] = options.initial_accumulator
        return rows

    def vectors(self, rows: Rows) -> Rows:
        """Return the vectors to export, shape (rows, dim): word plus context vectors, or word vectors alone."""
        if self.tied or self.export == "word":
            return rows[:, : self.dim]
        return rows[:, : self.dim] + rows[:, self.span : self.span + self.dim]
