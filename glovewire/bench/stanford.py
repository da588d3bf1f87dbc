"""Train with Stanford's `glove`, which the user has built, on the matrix of a dataset."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
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


def stanford_training(
    glove: Path, dataset: Dataset, folder: Path, options: TrainingOptions, *, threads: int, epochs: int
) -> Callable[[], Figures]:
    """Return a function that trains once with `glove` on the same matrix; the export of the matrix is not timed."""
    matrix = folder.resolve() / "peer-matrix"
    export(dataset.path, "stanford", matrix)
    words = {
        "-input-file": matrix / "cooccurrence.bin", "-vocab-file": matrix / "vocab.txt",
        "-save-file": matrix.parent / "peer-vectors", "-vector-size": options.dim, "-threads": threads,
        "-iter": epochs, "-x-max": options.x_max, "-alpha": options.alpha, "-verbose": 2,
    }  # fmt: skip
    command = [str(glove), *(str(word) for pair in words.items() for word in pair)]
    return partial(_train, command, matrix, dataset.total_entries * epochs, epochs)


def _train(command: Sequence[str], folder: Path, entries: int, epochs: int) -> Figures:
    """Train once; return the speed from the end of the preparations to the end of the last epoch."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stderr is not None
    output, began, ends = "", 0.0, list[float]()
    try:
        for line in process.stderr:
            output += line
            if re.search(r"\biter: *\d+", line):
                ends.append(time.perf_counter())
            elif re.search(r"done\.", line) and not ends:
                began = time.perf_counter()
        process.wait(PEER_EXIT_S)
    finally:
        process.kill()
        process.communicate()
    if process.returncode or len(ends) < epochs or not 0 < began < ends[-1]:
        how = f"status {process.returncode} after {len(ends)} of {epochs} epochs"
        raise ProcessDied(f"glove ended with {how}: {output[-200:].strip()}")
    return {RATE: entries / (ends[-1] - began)}


def beside_peer(repeats: list[dict[str, Figures]], store: str, threads: int, epochs: int) -> dict[str, Any]:
    """Return the peer's speed over the repeats, and the speed of `store` relative to it."""
    return {
        PEER: {"threads": threads, "epochs": epochs, RATE: spread(one[PEER][RATE] for one in repeats)},
        "times_as_fast_as_peer": spread(one[store][RATE] / one[PEER][RATE] for one in repeats),
    }
