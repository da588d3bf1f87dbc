"""Compare the vectors that Glovewire and fastText compose for unseen words with trained vectors of the same words.

    python benchmarks/peers/unseen.py DATASET CORPUS [--held-out 0.1] [--workers 2] [--dim 256] [--seed 0]
        [--peer-epochs 3] [-- OPTIONS OF glovewire train]

CORPUS is the text that DATASET was made from. A share of the vocabulary, drawn at random, is held out. Glovewire trains
once, fits n-grams to the other words and composes the held-out ones; the cosine is that with their trained vectors.
fastText trains twice, with the held-out words in its text and without them; the vectors of its second training are
rotated to those of the first (orthogonal Procrustes on the other words). `other` is the mean cosine with the vector of
another held-out word: what a composition has in common with any word. Prints one JSON object. fastText is in the extra
`fasttext`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from skip_gram import measured, write_tokens

from glovewire.bench.measurements import surroundings
from glovewire.common.errors import GlovewireError
from glovewire.common.model.subwords import fit
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors

Vectors = npt.NDArray[np.float32]


def main() -> int:
    """Train with both programs and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--held-out", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-epochs", type=int, default=3)
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1 :]
    args = parser.parse_args(words)
    try:
        print(json.dumps(compare(args, options)))
    except GlovewireError as error:
        parser.error(str(error))
    return 0


def compare(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Hold words out, train with each program, and return the mean cosines."""
    dataset = Dataset.open(args.dataset)
    before = surroundings()
    draw = np.random.default_rng(args.seed)
    held = np.zeros(len(dataset.words), np.bool_)
    held[draw.permutation(len(held))[: round(args.held_out * len(held))]] = True
    with tempfile.TemporaryDirectory(prefix="glovewire-unseen-") as name:
        ours = glovewire_cosines(args, dataset, held, options, Path(name))
        fasttext = fasttext_cosines(args, dataset, held, Path(name))
    return {
        "surroundings": before,
        "dataset": {"name": args.dataset.name, "words": len(dataset.words)},
        "held_out": int(held.sum()),
        "ours": ours,
        "fasttext": fasttext,
    }


def glovewire_cosines(
    args: argparse.Namespace, dataset: Dataset, held: npt.NDArray[np.bool_], options: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Train skip-gram, fit the n-grams of the words that are not held out, and compose those that are."""
    shared = ("--objective", "sgns", "--workers", args.workers, "--dim", args.dim, "--seed", args.seed)
    words = ("train", args.dataset, "--out", folder / "run", *shared, "--subwords", 0, *options, "--quiet")
    subprocess.run([sys.executable, "-m", "glovewire", *map(str, words)], check=True)
    vectors = load_vectors(folder / "run", verify=False).vectors
    kept = [word for word, out in zip(dataset.words, held, strict=True) if not out]
    subwords = fit(kept, vectors[~held], 0.0)
    return cosines(dataset, held, vectors, subwords.compose, args.seed)


def fasttext_cosines(
    args: argparse.Namespace, dataset: Dataset, held: npt.NDArray[np.bool_], folder: Path
) -> dict[str, Any]:
    """Train fastText with the held-out words and without them, and compose them with the second model."""
    import fasttext

    whole, less = folder / "whole.txt", folder / "less.txt"
    write_tokens(dataset, args.corpus, whole)
    out = {word for word, left_out in zip(dataset.words, held, strict=True) if left_out}
    with whole.open(encoding="utf-8", newline="\n") as lines, less.open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(" ".join(word for word in line.rstrip("\n").split(" ") if word not in out) + "\n")
    how = {"dim": args.dim, "ws": int(dataset.manifest.facts["window"]), "epoch": args.peer_epochs, "minCount": 1}
    models: list[Any] = []

    def train(text: Path) -> Callable[[], None]:
        return lambda: models.append(
            fasttext.train_unsupervised(str(text), model="skipgram", thread=args.workers, verbose=0, **how)
        )

    timed = [measured(train(text)) for text in (whole, less)]
    trained, other = (np.array([model.get_word_vector(word) for word in dataset.words]) for model in models)
    left, _, right = np.linalg.svd(other[~held].T @ trained[~held])
    turn = left @ right
    facts = cosines(dataset, held, trained, lambda word: models[1].get_word_vector(word) @ turn, args.seed)
    seconds = sum(each["processor_seconds"] for each in timed)
    version = importlib.metadata.version("fasttext")
    return {**facts, "version": version, "epochs": args.peer_epochs, "processor_seconds": seconds}


def cosines(
    dataset: Dataset,
    held: npt.NDArray[np.bool_],
    trained: Vectors,
    compose: Callable[[str], Vectors | None],
    seed: int,
) -> dict[str, float]:
    """Return the mean cosine of each held-out word's composition with its trained vector, and with another word's."""
    places = np.flatnonzero(held)
    zero = np.zeros(trained.shape[1], np.float32)
    found = [compose(dataset.words[place]) for place in places]
    composed = unit(np.array([zero if one is None else one for one in found]))
    own = unit(trained[places])
    other = own[np.random.default_rng(seed).permutation(len(own))]
    known = np.array([one is not None for one in found])
    same, random = (composed * own).sum(axis=1)[known], (composed * other).sum(axis=1)[known]
    return {"composed": float(known.mean()), "cosine": float(same.mean()), "other": float(random.mean())}


def unit(rows: Vectors) -> Vectors:
    """Return the rows scaled to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
