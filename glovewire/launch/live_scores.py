"""Score the vectors of a running training: pull all rows once per epoch and publish similarity scores."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glovewire.common.errors import DeadlineExceeded, RunOver, UnknownSession
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.postprocess import flatten_spectrum
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol.messages import NO_VERSION, Score
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


class Scorer:
    """Scores the vectors of a running training after each epoch but the last; `files` are similarity sets."""

    def __init__(
        self,
        addresses: Sequence[str],
        dataset: Dataset,
        options: TrainingOptions,
        files: Sequence[Path],
        keys: Path | None = None,
    ) -> None:
        self._dataset, self._options, self._files = dataset, options, files
        self._client = RequestClient(
            addresses, "scorer", silence_s=SILENCE_S, keys=None if keys is None else load_client_keys(keys, Role.WORKER)
        )
        self._store: ServerStore | None = None
        self._epoch = 0

    def at(self, epoch: int) -> None:
        """Score the vectors after `epoch` epochs, unless that was done before or it is the last epoch."""
        if not self._epoch < epoch < self._options.epochs:
            return
        self._epoch = epoch
        try:
            self._score()
        except (RunOver, UnknownSession, DeadlineExceeded):  # the end of the run came first
            self._epoch = self._options.epochs

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._client.close()

    def _score(self) -> None:
        layout = RowLayout.of(self._options)
        if self._store is None:
            self._client.connect(role="observer")
            self._store = ServerStore(self._client, self._options, self._dataset.layout.rows, layout.width)
        reply = self._store.pull_range(0, self._dataset.layout.rows, NO_VERSION)
        while not reply.done:
            self._store.wait()
        rows = reply.get()
        assert rows is not None
        vectors = np.empty((len(rows), self._options.dim), np.float32)
        vectors[self._dataset.permutation] = layout.vectors(rows)
        flatten_spectrum(vectors, self._options.spectrum)
        for name, found in score(self._dataset.words, vectors, self._files)["similarity"].items():
            if found["spearman"] is not None:
                self._client.ask(0, Score(Path(name).stem[:64], float(found["spearman"])))
