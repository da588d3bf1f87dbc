"""Compare `glovewire train --objective sgns` with gensim's skip-gram on the same text: time and scores.

    python benchmarks/peers/gensim_sgns.py DATASET CORPUS [--workers 2] [--dim 256] [--seed 0] [--peer-epochs 1]
        [--similarity PAIRS ...] [--analogies QUESTIONS] [-- OPTIONS OF glovewire train]

CORPUS is the text that DATASET was made from. Each program trains once, one after the other. gensim gets the tokens of
the dataset's vocabulary as a file, which its compiled loops read with `--workers` threads; writing the file and
building the vocabulary are not timed. Prints one JSON object. gensim is in the extra `dev`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.bench.measurements import surroundings
from glovewire.common.errors import UsageError
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors
from glovewire.preprocess.corpus.readers import read_batches
from glovewire.preprocess.corpus.sources import Selection, find_corpus
from glovewire.preprocess.tokens.encoder import Encoder
from glovewire.preprocess.tokens.nltk_tokens import make_tokenizer
from glovewire.vectors.evaluate import score

MAX_LINE_BYTES = 64 << 20
GENSIM_MAX_WORDS = 10_000
"""gensim ignores the words of a line beyond these."""


def main() -> int:
    """Train with both programs and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-epochs", type=int, default=1)
    parser.add_argument("--similarity", type=Path, nargs="*", default=[])
    parser.add_argument("--analogies", type=Path)
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1 :]
    args = parser.parse_args(words)
    try:
        result = compare(args, options)
    except UsageError as error:
        parser.error(str(error))
    print(table(result), file=sys.stderr)
    print(json.dumps(result))
    return 0


def compare(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Train once with each program; return seconds of training, scores, and the ratio."""
    dataset = Dataset.open(args.dataset)
    before = surroundings()
    gensim = train_gensim(dataset, args)
    ours = train_glovewire(args, options)
    return {
        "surroundings": before,
        "dataset": {"name": args.dataset.name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": list(options),
        "workers": args.workers,
        "dim": args.dim,
        "ours": ours,
        "gensim": gensim,
        "times_as_fast_as_peer": gensim["seconds"] / ours["seconds"],
    }


def train_glovewire(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Train with Glovewire; return seconds and scores."""
    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as folder:
        out = Path(folder) / "run"
        shared = ("--workers", args.workers, "--dim", args.dim, "--seed", args.seed)
        words = ("train", args.dataset, "--objective", "sgns", "--out", out, *shared, *options, "--quiet", "--json")
        command = [sys.executable, "-m", "glovewire", *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        trained = load_vectors(out, verify=False)
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return {"seconds": seconds, "scores": scores(args, trained.words, trained.vectors)}


def train_gensim(dataset: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """Train with gensim; return version, epochs, seconds and scores."""
    import gensim
    from gensim.models import Word2Vec

    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as folder:
        corpus = Path(folder) / "tokens.txt"
        tokens = write_tokens(dataset, args.corpus, corpus)
        model = Word2Vec(
            vector_size=args.dim,
            window=int(dataset.manifest.facts["window"]),
            sg=1,
            negative=5,
            min_count=1,
            workers=args.workers,
            seed=args.seed,
        )
        model.build_vocab_from_freq(dict(zip(dataset.words, dataset.counts.tolist(), strict=True)))
        began = time.perf_counter()
        model.train(corpus_file=str(corpus), total_words=tokens, epochs=args.peer_epochs)
        seconds = time.perf_counter() - began
    found = scores(args, dataset.words, model.wv[list(dataset.words)])
    return {"version": gensim.__version__, "epochs": args.peer_epochs, "seconds": seconds, "scores": found}


def write_tokens(dataset: Dataset, corpus: Path, out: Path) -> int:
    """Write the tokens of a corpus that are words of the dataset, line by line, and return their number.

    Raises UsageError unless the dataset was made from this corpus.
    """
    encoder, known = Encoder(make_tokenizer(str(dataset.manifest.facts["tokenizer"]))), set(dataset.words)
    written = 0
    with out.open("w", encoding="utf-8") as stream:
        for split in find_corpus((str(corpus),), Selection(None, "text", "train", MAX_LINE_BYTES)).splits():
            for batch in read_batches(split, "text", MAX_LINE_BYTES):
                text = encoder.decode(encoder.encode(batch.text, batch.starts, batch.stops, 0)).decode()
                for line in text.split("\n"):
                    words = [word for word in line.split(" ") if word in known]
                    for low in range(0, len(words), GENSIM_MAX_WORDS):
                        stream.write(" ".join(words[low : low + GENSIM_MAX_WORDS]) + "\n")
                    written += len(words)
    if written != int(dataset.counts.sum()):
        raise UsageError(f"{corpus} is not the text that {dataset.path} was made from: its words differ")
    return written


def scores(args: argparse.Namespace, words: Sequence[str], vectors: npt.NDArray[np.float32]) -> dict[str, float | None]:
    """Return the score on each test set in percent, by its name."""
    found = score(words, vectors, args.similarity, args.analogies)
    by_name = {Path(name).stem: one["spearman"] for name, one in found.get("similarity", {}).items()}
    return {**by_name, **({"analogies": found["analogies"]["total"]} if "analogies" in found else {})}


def table(result: dict[str, Any]) -> str:
    """Return the result as text."""
    sets = list(result["ours"]["scores"])
    lines = ["".join([f"{'':<10}{'seconds':>9}", *(f"   {name:>8}" for name in sets)])]
    for side in ("ours", "gensim"):
        one = result[side]
        figures = ("-" if one["scores"][name] is None else f"{one['scores'][name]:.1f}" for name in sets)
        cells = (f"   {figure:>{max(8, len(name))}}" for name, figure in zip(sets, figures, strict=True))
        lines.append("".join([f"{side:<10}{one['seconds']:9.1f}", *cells]))
    return "\n".join([*lines, f"ours is {result['times_as_fast_as_peer']:.3g} times as fast"])


if __name__ == "__main__":
    sys.exit(main())
