"""Score the vectors of a running training after every sweep: publish the scores, keep the best vectors, stop early.

In the block schedule the servers wait after each sweep until its rows have been pulled, so that every sweep is scored
on the rows that it produced. Unless training may stop early, the next sweep is trained during scoring. Minibatch
training does not wait, and is scored as often as time allows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded, RunOver, UnknownSession
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol.messages import NO_VERSION, Finish, Proceed, Score
from glovewire.common.roles import Role
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import load_client_keys
from glovewire.worker.stores.server_store import ServerStore

from ..vectors.evaluate import score
from .config import LocalConfig

SILENCE_S = 5.0


def scores_of(words: Sequence[str], vectors: Rows, files: Sequence[Path]) -> dict[str, float | None]:
    """Return the scores of `vectors` in percent, keyed by the names of the test sets; None where undefined."""
    found = score(words, vectors, files)["similarity"]
    return {Path(name).stem: one["spearman"] for name, one in found.items()}


@dataclass
class Judge:
    """Remembers the epoch with the best mean score, and decides when to stop. No I/O.

    Training should stop after `patience` epochs without a better one; 0 never stops it. If `keep_best` is set, `best`
    holds the vectors of the best epoch as trained, before post-processing.
    """

    patience: int = 0
    keep_best: bool = False
    best_epoch: int = 0
    best_scores: dict[str, float] = field(default_factory=dict)
    best: Rows | None = None
    newest_epoch: int = 0

    def judge(self, epoch: int, scores: dict[str, float], vectors: Rows) -> None:
        """Record the scores of the vectors after `epoch` epochs; an epoch without scores cannot become the best."""
        self.newest_epoch = epoch
        if scores and (not self.best_scores or fmean(scores.values()) > fmean(self.best_scores.values())):
            self.best_epoch, self.best_scores = epoch, scores
            self.best = vectors if self.keep_best else None

    @property
    def stops(self) -> bool:
        """Return whether training should stop now."""
        return 0 < self.patience <= self.newest_epoch - self.best_epoch


@dataclass
class Scorer:
    """Scores the vectors in `store` after each sweep on the similarity sets `files`; `judge` gets the scores.

    `epoch` is the one after which they were last scored or, at first, training begins.
    """

    store: ServerStore
    dataset: Dataset
    files: Sequence[Path]
    judge: Judge
    epoch: int

    def at(self, epoch: int) -> None:
        """Score the vectors after `epoch` epochs unless that is done; call it often to keep the connection alive.

        A server that does not answer in time is asked again in the next call.
        """
        try:
            self.store.client.poll(0)
            if self.epoch < epoch:
                self._score_epoch(epoch)
                self.epoch = epoch
        except DeadlineExceeded:
            return
        except (RunOver, UnknownSession):  # the run ended first
            self.epoch = self.store.options.epochs

    def _score_epoch(self, epoch: int) -> None:
        client, options = self.store.client, self.store.options
        waits, vectors = options.schedule == "blocks", self._pull()
        beside = waits and not self.judge.patience and epoch < options.epochs
        if beside:  # the next epoch is trained meanwhile
            client.ask(0, Proceed(epoch + 1))
        found = scores_of(self.dataset.words, flatten_spectrum(vectors.copy(), options.spectrum), self.files)
        scores = {name: percent for name, percent in found.items() if percent is not None}
        for name, percent in scores.items():
            client.ask(0, Score(name[:64], percent))
        self.judge.judge(epoch, scores, vectors)
        if self.judge.stops:
            for shard in range(len(client.channels)):
                client.ask(shard, Finish(Ending.ASKED))
        elif waits and not beside:
            client.ask(0, Proceed(epoch + 1))

    def _pull(self) -> Rows:
        """Return the current vectors, shape (words, dim), in the order of the vocabulary."""
        reply = self.store.pull_range(0, self.store.rows, NO_VERSION)
        while not reply.done:
            self.store.wait()
        rows = reply.get()
        vectors = np.empty((len(rows), self.store.options.dim), np.float32)
        vectors[self.dataset.permutation] = RowLayout.of(self.store.options).vectors(rows)
        return vectors


@contextmanager
def scoring(config: LocalConfig, addresses: Sequence[str], judge: Judge) -> Iterator[Callable[[int], None]]:
    """Yield the `Scorer.at` of a run; enter before the workers start, to learn at which epoch training begins."""
    role = Role.ADMIN if judge.patience else Role.WORKER  # only an administrator may end the run
    keys = None if config.keys is None else load_client_keys(config.keys, role)
    dataset = Dataset.open(config.dataset, verify=False)
    with RequestClient(addresses, "scorer", silence_s=SILENCE_S, keys=keys) as client:
        client.connect(role="observer")
        store = ServerStore(client, config.options, dataset.layout.rows)
        yield Scorer(store, dataset, config.watch, judge, int(client.status(0)["epoch"])).at
