"""Train with Stanford's `glove`, which the user has built, on the matrix of a dataset."""

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from glovewire.common.errors import ProcessDied, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.dataset import Dataset

from ..vectors.export import export
from .measurements import spread
from .train import RATE, Figures

PEER = "peer"
PEER_EXIT_S = 3600.0


def program(folder: Path, name: str) -> Path:
    """Return the path of one of Stanford's programs; UsageError if it does not exist."""
    for place in (folder / "build" / name, folder / name):
        if place.is_file() and os.access(place, os.X_OK):
            return place.resolve()
    raise UsageError(f"{folder} has neither {name} nor build/{name}: build Stanford's GloVe there first")


class StanfordTraining:
    """Trains with Stanford's `glove` on the same matrix; the export of the matrix is not timed."""

    def __init__(
        self, glove: Path, dataset: Dataset, folder: Path, options: TrainingOptions, *, threads: int, epochs: int
    ) -> None:
        self._entries, self._epochs = dataset.total_entries * epochs, epochs
        self._matrix = folder.resolve() / "peer-matrix"
        export(dataset.path, "stanford", self._matrix)
        words = {
            "-input-file": self._matrix / "cooccurrence.bin", "-vocab-file": self._matrix / "vocab.txt",
            "-save-file": self._matrix.parent / "peer-vectors", "-vector-size": options.dim, "-threads": threads,
            "-iter": epochs, "-x-max": options.x_max, "-alpha": options.alpha, "-verbose": 2,
        }  # fmt: skip
        self._command = [str(glove), *(str(word) for pair in words.items() for word in pair)]

    def train(self) -> Figures:
        """Train once; return the speed from the end of the preparations to the end of the last epoch."""
        process = subprocess.Popen(
            self._command,
            cwd=self._matrix,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            began, ended, epochs, output = _times(process)
        finally:
            process.kill()
            process.communicate()
        if process.returncode or epochs < self._epochs or ended <= began or began == 0:
            how = f"status {process.returncode} after {epochs} of {self._epochs} epochs"
            raise ProcessDied(f"glove ended with {how}: {output[-200:].strip()}")
        return {RATE: self._entries / (ended - began)}


def _times(process: subprocess.Popen[str]) -> tuple[float, float, int, str]:
    """Return when the preparations and the last epoch ended, the number of epochs, and the program's output."""
    assert process.stderr is not None
    began, ended, epochs, output = 0.0, 0.0, 0, ""
    for line in process.stderr:
        output += line
        if re.search(r"\biter: *\d+", line):
            ended, epochs = time.perf_counter(), epochs + 1
        elif re.search(r"done\.", line) and not ended:
            began = time.perf_counter()
    process.wait(PEER_EXIT_S)
    return began, ended, epochs, output


def beside_peer(repeats: list[dict[str, Figures]], store: str, threads: int, epochs: int) -> dict[str, Any]:
    """Return the peer's speed over the repeats, and the speed of `store` relative to it."""
    return {
        PEER: {"threads": threads, "epochs": epochs, RATE: spread(one[PEER][RATE] for one in repeats)},
        "times_as_fast_as_peer": spread(one[store][RATE] / one[PEER][RATE] for one in repeats),
    }
