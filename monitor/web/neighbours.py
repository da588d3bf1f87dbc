"""Nearest words while training goes on: asks the running servers for their rows, a piece at a time, and never waits.

An observer says hello to each shard, pulls its rows in pieces of a few mebibytes with its other work in between, and
keeps the vectors, scaled to length 1. They are asked for when somebody wants to know and what there is has become old;
words, which do not change, once. It must never ask for more than it can keep.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, GlovewireError, LimitExceeded, ProtocolError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol.messages import (
    NO_VERSION,
    GetStatus,
    GetWords,
    Hello,
    Leave,
    Message,
    Pull,
    Rows,
    Status,
    Welcome,
    Words,
)
from glovewire.common.storage.run_folder import load_vectors
from glovewire.common.transport.curve_keys import ClientKeys

from ..stream.query_client import Line, expect

FRESH_S = 10.0
ANSWER_S = 5.0
PIECE_BYTES = 4 << 20
PIECE_WORDS = 1 << 15
MAX_BYTES = 512 << 20
TOP = 10

Array = npt.NDArray[np.float32]
Near = list[tuple[str, float]]
Asking = Generator[Message, Message, None]


@dataclass(frozen=True)
class Known:
    """Words, and their vectors scaled to length 1: float32, row i for `words[i]`; taken at `now`."""

    words: Sequence[str]
    index: dict[str, int]
    unit: Array
    now: float = 0.0

    def nearest(self, word: str, top: int = TOP) -> Near | None:
        """The words with the largest cosine to `word`, best first; None when it is not known."""
        row = self.index.get(word, self.index.get(word.lower()))
        if row is None:
            return None
        likeness = self.unit @ self.unit[row]
        likeness[row] = -np.inf
        top = min(top, len(self.words) - 1)
        best = np.argpartition(likeness, -top)[-top:] if top else np.empty(0, np.int64)
        return [(self.words[at], float(likeness[at])) for at in best[np.argsort(-likeness[best])]]


class Lookup(Protocol):
    """Where nearest words come from."""

    known: Known | None
    trouble: str
    """Why there is nothing, or nothing new."""

    @property
    def share(self) -> float | None:
        """How much of what is on its way is here, 0 to 1; None when nothing is."""

    def want(self, now: float) -> None:
        """Somebody wants to know: see to it that what is known is fresh."""

    def step(self) -> None:
        """Go on with it, for a moment."""


class RunLookup:
    """The vectors of a finished run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.known: Known | None = None
        self.trouble = ""

    @property
    def share(self) -> float | None:
        """They are here at once."""
        return None

    def want(self, now: float) -> None:
        """Read them, once."""
        if self.known is not None:
            return
        try:
            found = load_vectors(self._run, verify=False)
        except ArtifactError as error:
            self.trouble = str(error)
            return
        self.known = Known(found.words, found.index, unit(np.array(found.vectors)), now)

    def step(self) -> None:
        """Nothing to do."""


class ServerLookup:
    """The rows of running servers; `requests` tells where they answer, one address a shard, as far as is known."""

    def __init__(self, requests: Callable[[], Sequence[str]], keys: ClientKeys | None = None) -> None:
        self._requests, self._keys = requests, keys
        self._name = f"monitor-{secrets.token_hex(4)}"
        self._line: Line | None = None
        self._asking: Asking | None = None
        self._words: list[str] = []
        self._run = ""
        self._done = self._all = 0
        self.known: Known | None = None
        self.trouble = ""

    @property
    def share(self) -> float | None:
        """Rows that are here, of those on their way."""
        return None if self._asking is None else self._done / max(self._all, 1)

    def want(self, now: float) -> None:
        """Begin to ask, unless that is going on or was done a moment ago."""
        if self._asking is not None or (self.known is not None and now - self.known.now < FRESH_S):
            return
        addresses = tuple(self._requests())
        if not addresses:
            self.trouble = "no server has said yet where it can be asked"
            return
        self.trouble = ""
        self._begin(self._ask_all(addresses, now))

    def step(self) -> None:
        """Take in what was answered and ask on."""
        if self._line is None or self._asking is None:
            return
        try:
            answer = self._line.answer()
            if answer is not None:
                question = self._asking.send(answer)  # which may be one for the next shard
                self._line.ask(question)
            elif self._line.waits_s() > ANSWER_S:
                self._end(f"{self._line.address} does not answer")
        except StopIteration:
            self._end("")
        except GlovewireError as error:
            self._end(str(error))

    def close(self) -> None:
        """Ask no more; twice is fine."""
        self._end("")

    def _begin(self, asking: Asking) -> None:
        self._asking, self._done, self._all = asking, 0, 0
        try:
            first = next(asking)
            assert self._line is not None
            self._line.ask(first)
        except GlovewireError as error:
            self._end(str(error))

    def _end(self, trouble: str) -> None:
        self.trouble, self._asking = trouble, None
        if self._line is not None:
            self._line.close()
            self._line = None

    def _dial(self, address: str) -> None:
        if self._line is not None:
            self._line.close()
        self._line = Line(address, self._keys)

    def _ask_all(self, addresses: Sequence[str], now: float) -> Asking:
        """Every shard in turn; what they say together becomes `known`."""
        bounds, run = [], ""
        for address in addresses:
            self._dial(address)
            told = json.loads(bytes(expect((yield GetStatus()), Status).body))
            run = str(told["run"])
            bounds.append((address, int(told["rows"][0]), int(told["rows"][1]), int(told["shards"])))
        bounds.sort(key=lambda bound: bound[1])
        self._all = bounds[-1][2]
        if len(bounds) != bounds[0][3]:
            raise ProtocolError(
                f"only {len(bounds)} of {bounds[0][3]} shards are watched: give the others' addresses too"
            )
        if run != self._run:
            self._run, self._words = run, []
        vectors: Array | None = None
        for address, first, last, _ in bounds:
            self._dial(address)
            layout = yield from self._introduce()
            if vectors is None:
                if self._all * layout.dim * 4 > MAX_BYTES:
                    raise LimitExceeded(f"{self._all:,} vectors of {layout.dim} dimensions are too many to ask for")
                vectors = np.empty((self._all, layout.dim), np.float32)
            yield from self._ask_words(first, last)
            yield from self._ask_rows(first, last, layout, vectors)
            yield Leave(Ending.LEFT)
        assert vectors is not None
        self.known = Known(self._words, {word: row for row, word in enumerate(self._words)}, vectors, now)

    def _introduce(self) -> Generator[Message, Message, RowLayout]:
        hello = Hello("observer", self._name, secrets.randbits(62), "")
        welcome = expect((yield hello), Welcome)
        return RowLayout.of(TrainingOptions.from_message(welcome.options))

    def _ask_words(self, first: int, last: int) -> Asking:
        while len(self._words) < last:
            start = len(self._words)
            words = expect((yield GetWords(start, min(start + PIECE_WORDS, last))), Words)
            found = bytes(words.words).decode("utf-8", "replace").split("\n")[:-1]
            if not found:
                raise ProtocolError(f"rows {first}..{last} have no words")
            self._words += found

    def _ask_rows(self, first: int, last: int, layout: RowLayout, into: Array) -> Asking:
        step = max(1, PIECE_BYTES // (layout.width * 4))
        for start in range(first, last, step):
            end = min(start + step, last)
            rows = expect((yield Pull("rows", start, end, NO_VERSION, 0)), Rows)
            values = np.require(rows.values, np.float32, "A")
            if values.shape != (end - start, layout.width):
                raise ProtocolError(f"rows of shape {values.shape} are not what was asked for")
            into[start:end] = unit(layout.vectors(values))
            self._done = end


def unit(vectors: npt.NDArray[Any]) -> Array:
    """The vectors scaled to length 1; one of length 0 stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), np.float32)
