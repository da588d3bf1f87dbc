"""Fit n-grams to the vectors of a running training, so that the dashboard finds the neighbours of unseen words.

The fit is the same as at the end of a run; it runs in one thread alongside the monitor. It begins when an unseen word
has been requested, and is repeated for vectors that are REFIT_S newer. For vectors of MAX_BYTES it takes about 800 MB
and ten seconds of one core, for 32,000 words 150 MB and one second.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from glovewire.common.errors import GlovewireError
from glovewire.common.model.neighbours import UnitVectors, unit_rows
from glovewire.common.model.subwords import fit

REFIT_S = 30.0
MAX_BYTES = 128 << 20
MAX_ASKED = 64
FITTING = "fitting n-grams to the current vectors, to compose it"
TOO_MANY = "too many to fit n-grams to before the end of the run"


class UnseenWords:
    """Vectors of unseen words: `vectors`, fitted to those fetched at `fetched_at`, have n-grams; None before a fit.

    Until then, `problem` says why an unseen word cannot be composed, or not yet; "" if nothing prevents it. `weight` is
    the run's `subwords` option; with 0, nothing is fitted.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self.vectors: UnitVectors | None = None
        self.fetched_at = 0.0
        self._asked: set[str] = set()
        self.problem = ""
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[tuple[UnitVectors, float]] | None = None
        self._closed = threading.Event()

    def forget(self) -> None:
        """Drop what was fitted to another run."""
        self.vectors = self._running = None
        self.fetched_at, self.problem = 0.0, ""

    def ask(self, word: str) -> None:
        """Request a fit at the next `step` whose vectors lack `word`."""
        if len(self._asked) < MAX_ASKED:
            self._asked.add(word)

    def step(self, vectors: UnitVectors, fetched_at: float) -> None:
        """Take over a finished fit; begin one to `vectors` if an unseen word was asked for. Never waits."""
        if self._running is not None:
            if not self._running.done():
                return
            done, self._running = self._running, None
            try:
                self.vectors, self.fetched_at = done.result()
            except (GlovewireError, MemoryError) as error:
                self.problem = f"n-grams cannot be fitted: {error or 'out of memory'}"
        wanted, self._asked = [word for word in self._asked if vectors.find(word) is None], set()
        if not wanted or not self.weight or self._closed.is_set():
            return
        if vectors.rows.nbytes > MAX_BYTES:
            self.problem = TOO_MANY
        elif self.vectors is None or fetched_at - self.fetched_at >= REFIT_S:
            self.problem = FITTING
            self._running = self._thread.submit(self._fit, vectors, fetched_at)

    def close(self) -> None:
        """Cancel a fit, which ends soon without a result; may be called twice."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fit(self, vectors: UnitVectors, fetched_at: float) -> tuple[UnitVectors, float]:
        mixed = vectors.rows.copy()
        subwords = fit(vectors.words, mixed, self.weight, threads=1, cancelled=self._closed.is_set)
        return UnitVectors(vectors.words, unit_rows(mixed), subwords), fetched_at
