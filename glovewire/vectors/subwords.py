"""Fit n-grams to vectors that are already trained, and write both as a run: `glovewire subwords`."""

from pathlib import Path
from typing import Any

import numpy as np

from glovewire.common.addresses import url_of
from glovewire.common.cli.config_file import saved_value
from glovewire.common.errors import UsageError
from glovewire.common.model.options import DEFAULTS, TrainingOptions
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.stores import uploaded

from .read import read_vectors


def add_subwords(path: Path, out: Path, factor: float | None = None) -> dict[str, Any]:
    """Fit n-grams to the vectors at `path`, add them with weight `factor`, and write the run `out`.

    Without a factor, takes the default of the objective that the run was trained with, or of skip-gram. Returns plain
    values. Raises UsageError if `path` already has n-grams, which would then be counted twice.
    """
    loaded = read_vectors(path)
    if loaded.subwords is not None:
        raise UsageError(f"{path} has n-grams already, and its vectors contain them: take a run with --subwords 0")
    if factor is None:
        objective = saved_value(path / runs.CONFIG, "objective", str) or "sgns"
        factor = float(DEFAULTS.get(objective, {}).get("subwords", TrainingOptions.subwords))
    with uploaded(out, "run") as place:
        runs.prepare(place)
        vectors = np.array(loaded.vectors)
        subwords = runs.write_with_ngrams(place, loaded.words, vectors, factor, loaded.facts, loaded.counts)
        return {
            "run": url_of(out) or str(out),
            "words": len(loaded.words),
            "dim": loaded.dim,
            "factor": factor,
            "ngrams": len(subwords.buckets),
            "bytes": sum((place / name).stat().st_size for name in (runs.NGRAMS, runs.BUCKETS)),
        }
