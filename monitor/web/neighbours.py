"""Fetch the vectors for the dashboard's nearest words: from running servers, in pieces, or from a finished run.

An observer connects to the shards one after the other and pulls their rows in pieces of a few mebibytes, without
blocking the monitor's other work. The vectors' spectrum is flattened as in `vectors.npy`. N-grams are mixed into known
words only at the end of the run; before, they are fitted only for unseen words (`unseen`). Vectors are fetched on
demand if the last ones are older than FRESH_S; words do not change and are fetched once. A table above MAX_BYTES is
refused. The search itself is in `common.model.neighbours`.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.client.pending import Pending, expect
from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, DeadlineExceeded, GlovewireError, LimitExceeded, ProtocolError
from glovewire.common.model.neighbours import UnitVectors, unit_rows
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flattened_in_pieces
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.run_folder import load_vectors
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import ClientKeys

from .unseen import UnseenWords

FRESH_S = 10.0
ANSWER_S = 5.0
PIECE_BYTES = 4 << 20
PIECE_WORDS = 1 << 15
MAX_BYTES = 512 << 20

M = TypeVar("M", bound=m.Message)


class RunLookup:
    """Vectors of a finished run, with the interface of ServerLookup."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.vectors: UnitVectors | None = None
        self.progress: float | None = None
        self.error = ""

    def refresh(self, now: float, word: str = "") -> None:  # noqa: ARG002
        """Read the vectors, unless they have been read; sets `error` if the run is damaged."""
        if self.vectors is not None:
            return
        try:
            found = load_vectors(self._run, verify=False)
        except ArtifactError as error:
            self.error = str(error)
            return
        self.vectors = UnitVectors.of(found.words, found.vectors, found.subwords)

    def step(self) -> None:
        """Do nothing: `refresh` reads the vectors at once."""

    def vectors_for(self, word: str) -> tuple[UnitVectors | None, float, str]:  # noqa: ARG002
        """See ServerLookup; the vectors never become outdated, and lack only words without a known n-gram."""
        return self.vectors, math.inf, ""


class ServerLookup:
    """Fetches the vectors of running servers; `requests` returns the servers' known request addresses.

    `vectors` were fetched at `fetched_at`; `error` says why there are none, or why a newer fetch failed.
    """

    def __init__(self, requests: Callable[[], Sequence[str]], keys: ClientKeys | None = None) -> None:
        self._requests, self._keys = requests, keys
        name = f"monitor-{secrets.token_hex(4)}"
        self._name = name if keys is None else keys.session_name(name)
        self._fetching: Generator[None, None, None] | None = None
        self._words: list[str] = []
        self._run = ""
        self._done = self._total = 0
        self._unseen = UnseenWords()
        self.vectors: UnitVectors | None = None
        self.fetched_at = 0.0
        self.error = ""

    @property
    def progress(self) -> float | None:
        """Return the share of the rows that has arrived, 0 to 1; None while no rows are being fetched."""
        return None if self._fetching is None else self._done / max(self._total, 1)

    def refresh(self, now: float, word: str = "") -> None:
        """Start fetching the rows, unless they are being fetched or were fetched less than FRESH_S ago.

        If `word` is unseen, n-grams are fitted to the rows afterwards.
        """
        self._unseen.ask(word)
        if self._fetching is not None or (self.vectors is not None and now - self.fetched_at < FRESH_S):
            return
        addresses = tuple(self._requests())
        if not addresses:
            self.error = "no server has published its request address yet"
            return
        self.error = ""
        self._fetching, self._done, self._total = self._fetch(addresses, now), 0, 0
        self.step()

    def step(self) -> None:
        """Process a reply if one has arrived, and send the next request; fit n-grams if requested. Never waits."""
        if self._fetching is None:
            if self.vectors is not None:
                self._unseen.step(self.vectors, self.fetched_at)
            return
        try:
            next(self._fetching)
        except StopIteration:
            self._fetching = None
        except GlovewireError as error:
            self.error, self._fetching = str(error), None

    def close(self) -> None:
        """Stop fetching and fitting; may be called twice."""
        if self._fetching is not None:
            self._fetching.close()
            self._fetching = None
        self._unseen.close()

    def vectors_for(self, word: str) -> tuple[UnitVectors | None, float, str]:
        """Return the vectors in which to look up `word` (with n-grams if it is unseen), their time, a reason.

        The time is when they were fetched; the reason is why unseen words cannot be composed, or not yet, and "" if
        only unknown n-grams can prevent it.
        """
        unseen = self._unseen
        if unseen.vectors is None:
            return self.vectors, self.fetched_at, unseen.problem
        if self.vectors is None or self.vectors.find(word) is not None:
            return self.vectors, self.fetched_at, ""
        return unseen.vectors, unseen.fetched_at, ""

    def _fetch(self, addresses: Sequence[str], now: float) -> Generator[None, None, None]:
        """Request the words (once per run) and all rows from the shards in turn; then set `vectors`.

        Yields while no reply has arrived, and between the parts of a computation.
        """
        shards, run = [], ""
        for address in addresses:
            with self._connection(address) as client:
                status = json.loads(bytes((yield from _ask(client, m.GetStatus(), m.Status)).body))
            run = str(status["run"])
            shards.append((int(status["rows"][0]), int(status["rows"][1]), address, int(status["shards"])))
        shards.sort()
        self._total = shards[-1][1]
        if len(shards) != (count := shards[0][3]):
            raise ProtocolError(f"only {len(shards)} of {count} shards are watched: give the others' addresses too")
        if run != self._run:
            self._run, self._words = run, []
            self._unseen.forget()
        vectors = np.empty((0, 0), np.float32)
        for first, last, address, _ in shards:
            with self._connection(address) as client:
                hello = m.Hello("observer", self._name, secrets.randbits(62), "")
                options = TrainingOptions.from_message((yield from _ask(client, hello, m.Welcome)).options)
                layout = RowLayout.of(options)
                if not vectors.size:
                    if self._total * layout.dim * 4 > MAX_BYTES:
                        raise LimitExceeded(f"{self._total:,} vectors of {layout.dim} dimensions are too many to fetch")
                    vectors = np.empty((self._total, layout.dim), np.float32)
                yield from self._fetch_words(client, first, last)
                yield from self._fetch_rows(client, first, last, layout, vectors)
                yield from _ask(client, m.Leave(Ending.LEFT), m.Message)
        if options.spectrum != 1.0:  # as for vectors.npy, so that cosines are those of `glovewire neighbours`
            yield from flattened_in_pieces(vectors, options.spectrum)
            for start in range(0, len(vectors), PIECE_WORDS):
                vectors[start : start + PIECE_WORDS] = unit_rows(vectors[start : start + PIECE_WORDS])
                yield
        self._unseen.weight = options.subwords
        self.vectors, self.fetched_at = UnitVectors(self._words, vectors), now

    def _connection(self, address: str) -> RequestClient:
        return RequestClient([address], "monitor", keys=self._keys)

    def _fetch_words(self, client: RequestClient, first: int, last: int) -> Iterator[None]:
        while len(self._words) < last:
            start = len(self._words)
            reply = yield from _ask(client, m.GetWords(start, min(start + PIECE_WORDS, last)), m.Words)
            found = bytes(reply.words).decode("utf-8", "replace").split("\n")[:-1]
            if not found:
                raise ProtocolError(f"rows {first}..{last} have no words")
            self._words += found

    def _fetch_rows(
        self, client: RequestClient, first: int, last: int, layout: RowLayout, into: Rows
    ) -> Iterator[None]:
        step = max(1, PIECE_BYTES // (layout.width * 4))
        for start in range(first, last, step):
            end = min(start + step, last)
            reply = yield from _ask(client, m.Pull("rows", start, end, m.NO_VERSION), m.Rows)
            values = np.require(reply.values, np.float32, "A")
            if values.shape != (end - start, layout.width):
                raise ProtocolError(f"rows of shape {values.shape} instead of {(end - start, layout.width)}")
            into[start:end] = unit_rows(layout.vectors(values))
            self._done = end


def _ask(client: RequestClient, request: m.Message, kind: type[M]) -> Generator[None, None, M]:
    """Send a request, yield until its reply has arrived, and return it; DeadlineExceeded after ANSWER_S."""
    reply: Pending[m.Message] = Pending()
    deadline = time.monotonic() + ANSWER_S
    client.request(0, request, reply)
    while not reply.done:
        yield
        client.poll(0, silence=False)
        if not reply.done and time.monotonic() > deadline:
            raise DeadlineExceeded(f"{client.where(0)} does not answer")
    return expect(reply.get(), kind)


NeighbourLookup = RunLookup | ServerLookup
