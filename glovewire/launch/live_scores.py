"""Score the vectors of a running training after every sweep: publish the scores, keep the best vectors, stop early.

In the block schedule the servers wait after each sweep until its rows have been pulled, so that every sweep is scored
on the rows that it produced. Unless training may stop early, the next sweep is trained during scoring. Minibatch
training does not wait, and is scored as often as time allows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from glovewire.common.array_types import Rows
from glovewire.common.client.pending import expect
from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded, RunOver, UnknownSession
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol.messages import NO_VERSION, Finish, GetStatus, Proceed, Score, Status
from glovewire.common.roles import Role
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import load_client_keys
from glovewire.worker.stores.server_store import ServerStore

from ..vectors.evaluate import score

SILENCE_S = 5.0


def check(files: Sequence[Path]) -> None:
    """Read the test sets once, so that an unreadable file raises MalformedFile before training begins."""
    score(("word",), np.ones((1, 1)), files)


def of_run(run: Path, files: Sequence[Path]) -> dict[str, float]:
    """Return the scores of the finished vectors in `run`, in percent, keyed by the names of the test sets."""
    trained = load_vectors(run, verify=False)
    found = score(trained.words, trained.vectors, files)["similarity"]
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
        if scores and (not self.best_scores or _mean(scores) > _mean(self.best_scores)):
            self.best_epoch, self.best_scores = epoch, scores
            self.best = vectors if self.keep_best else None

    @property
    def stops(self) -> bool:
        """Return whether training should stop now."""
        return 0 < self.patience <= self.newest_epoch - self.best_epoch


def _mean(scores: dict[str, float]) -> float:
    return sum(scores.values()) / len(scores)


class Scorer:
    """Scores the vectors of a running training after each sweep; `files` are similarity sets.

    Connects on creation, before the workers start, to learn at which epoch training begins. `judge` gets the scores.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        dataset: Dataset,
        options: TrainingOptions,
        files: Sequence[Path],
        judge: Judge,
        keys: Path | None,
    ) -> None:
        self._dataset, self._options, self._files, self.judge = dataset, options, files, judge
        role = Role.ADMIN if judge.patience else Role.WORKER  # only an administrator may end the run
        self._client = RequestClient(
            addresses, "scorer", silence_s=SILENCE_S, keys=None if keys is None else load_client_keys(keys, role)
        )
        self._waits = options.schedule == "blocks"
        try:
            self._client.connect(role="observer")
            status = expect(self._client.ask(0, GetStatus()), Status)
        except BaseException:
            self._client.close()
            raise
        self._epoch = int(json.loads(bytes(status.body))["epoch"])
        self._store = ServerStore(self._client, options, dataset.layout.rows)

    def at(self, epoch: int) -> None:
        """Score the vectors after `epoch` epochs unless that is done; call it often to keep the connection alive.

        A server that does not answer in time is asked again in the next call.
        """
        try:
            self._client.poll(0)
            if self._epoch < epoch:
                self._score_epoch(epoch)
                self._epoch = epoch
        except DeadlineExceeded:
            return
        except (RunOver, UnknownSession):  # the run ended first
            self._epoch = self._options.epochs

    def _score_epoch(self, epoch: int) -> None:
        vectors = self._pull()
        beside = self._waits and not self.judge.patience and epoch < self._options.epochs
        if beside:  # the next epoch is trained meanwhile
            self._client.ask(0, Proceed(epoch + 1))
        self._score(epoch, vectors)
        if self.judge.stops:
            for shard in range(len(self._client.channels)):
                self._client.ask(shard, Finish(Ending.ASKED))
        elif self._waits and not beside:
            self._client.ask(0, Proceed(epoch + 1))

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._client.close()

    def _pull(self) -> Rows:
        """Return the current vectors, shape (words, dim), in the order of the vocabulary."""
        layout = RowLayout.of(self._options)
        reply = self._store.pull_range(0, self._dataset.layout.rows, NO_VERSION)
        while not reply.done:
            self._store.wait()
        rows = reply.get()
        assert rows is not None
        vectors = np.empty((len(rows), self._options.dim), np.float32)
        vectors[self._dataset.permutation] = layout.vectors(rows)
        return vectors

    def _score(self, epoch: int, vectors: Rows) -> None:
        shown = flatten_spectrum(vectors.copy(), self._options.spectrum)
        found = score(self._dataset.words, shown, self._files)["similarity"]
        scores = {Path(name).stem: float(one["spearman"]) for name, one in found.items() if one["spearman"] is not None}
        for name, percent in scores.items():
            self._client.ask(0, Score(name[:64], percent))
        self.judge.judge(epoch, scores, vectors)
