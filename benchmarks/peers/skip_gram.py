"""Compare `glovewire train --objective sgns` with the skip-gram of gensim or fastText on the same text: time, scores.

    python benchmarks/peers/skip_gram.py DATASET CORPUS [--peer gensim|fasttext] [--workers 2] [--dim 256] [--seed 0]
        [--peer-epochs 1] [--similarity PAIRS ...] [--analogies QUESTIONS] [-- OPTIONS OF glovewire train]

CORPUS is the text that DATASET was made from. Each program trains once, one after the other. The peer gets the tokens
of the dataset's vocabulary as a file, which its compiled loops read with `--workers` threads. Writing the file is not
timed, nor is building gensim's vocabulary (fastText's is: it takes less than a hundredth of the time). For Glovewire,
`seconds` covers training and `processor_seconds` the whole command, n-grams included; for the peer, both cover its
training. Prints one JSON object. gensim is in the extra `dev`, fastText in `fasttext`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpus_tokens
import numpy as np
import numpy.typing as npt

from glovewire.bench.measurements import surroundings
from glovewire.common.errors import GlovewireError, UsageError
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors
from glovewire.preprocess.config import PreprocessConfig
from glovewire.vectors.evaluate import score

GENSIM_MAX_WORDS = 10_000
"""gensim ignores the words of a line beyond this number."""


def main() -> int:
    """Train with both programs and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer", choices=PEERS, default="gensim")
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
    except GlovewireError as error:
        parser.error(str(error))
    print(table(result), file=sys.stderr)
    print(json.dumps(result))
    return 0


def compare(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Train once with each program; return seconds of training, scores, and the ratio."""
    dataset = Dataset.open(args.dataset)
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as folder:
        corpus = Path(folder) / "tokens.txt"
        write_tokens(dataset, args.corpus, corpus)
        peer = PEERS[args.peer](dataset, corpus, args)
    ours = train_glovewire(args, options)
    return {
        "surroundings": before,
        "dataset": {"name": args.dataset.name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": list(options),
        "workers": args.workers,
        "dim": args.dim,
        "ours": ours,
        args.peer: peer,
        "times_as_fast_as_peer": peer["seconds"] / ours["seconds"],
        "processor_time_of_peer": peer["processor_seconds"] / ours["processor_seconds"],
    }


def train_glovewire(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Train with Glovewire; return seconds, processor seconds and scores."""
    before = processor_seconds(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="glovewire-peer-") as folder:
        out = Path(folder) / "run"
        shared = ("--workers", args.workers, "--dim", args.dim, "--seed", args.seed)
        words = ("train", args.dataset, "--objective", "sgns", "--out", out, *shared, *options, "--quiet", "--json")
        command = [sys.executable, "-m", "glovewire", *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        trained = load_vectors(out, verify=False)
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds(resource.RUSAGE_CHILDREN) - before,
        "scores": scores(args, trained.words, trained.vectors),
    }


def train_gensim(dataset: Dataset, corpus: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Train with gensim; return version, epochs, seconds, processor seconds and scores."""
    import gensim
    from gensim.models import Word2Vec

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
    timed = measured(
        lambda: model.train(corpus_file=str(corpus), total_words=int(dataset.counts.sum()), epochs=args.peer_epochs)
    )
    found = scores(args, dataset.words, model.wv[list(dataset.words)])
    return {"version": gensim.__version__, "epochs": args.peer_epochs, **timed, "scores": found}


def train_fasttext(dataset: Dataset, corpus: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Train with fastText, its n-grams of 3 to 6 characters and its own seed; return as `train_gensim`."""
    import fasttext

    models: list[Any] = []

    def train() -> None:
        options = {"dim": args.dim, "ws": int(dataset.manifest.facts["window"]), "epoch": args.peer_epochs}
        options |= {"thread": args.workers, "minCount": 1, "verbose": 0}
        models.append(fasttext.train_unsupervised(str(corpus), model="skipgram", **options))

    timed = measured(train)
    vectors = np.array([models[0].get_word_vector(word) for word in dataset.words])
    version = importlib.metadata.version("fasttext")
    return {"version": version, "epochs": args.peer_epochs, **timed, "scores": scores(args, dataset.words, vectors)}


PEERS = {"gensim": train_gensim, "fasttext": train_fasttext}


def measured(train: Callable[[], object]) -> dict[str, float]:
    """Return the seconds and processor seconds that `train` takes in this process."""
    before, began = processor_seconds(resource.RUSAGE_SELF), time.perf_counter()
    train()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "processor_seconds": processor_seconds(resource.RUSAGE_SELF) - before}


def processor_seconds(whose: int) -> float:
    """Return the processor time of this process or of its children, in seconds."""
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def write_tokens(dataset: Dataset, corpus: Path, out: Path) -> int:
    """Write the tokens of a corpus that are words of the dataset, line by line, and return their number.

    Raises UsageError unless the dataset was made from this corpus.
    """
    facts, known, written = dataset.manifest.facts, set(dataset.words), 0
    options = {name: facts[name] for name in ("tokenizer", "sentences", "lowercase", "digits", "phrases", "lines")}
    tokens = out.with_suffix(".all")
    corpus_tokens.write_tokens(PreprocessConfig(corpus=(str(corpus),), out=tokens, **options))
    with tokens.open(encoding="utf-8", newline="\n") as lines, out.open("w", encoding="utf-8") as stream:
        for line in lines:
            words = [word for word in line.rstrip("\n").split(" ") if word in known]
            for low in range(0, len(words), GENSIM_MAX_WORDS):
                stream.write(" ".join(words[low : low + GENSIM_MAX_WORDS]) + "\n")
            written += len(words)
    if written != int(dataset.counts.sum()):
        unknown = "or it was made with --text-column or --split"
        raise UsageError(f"{corpus} is not the text that {dataset.path} was made from, {unknown}: its words differ")
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
    for side in ("ours", next(name for name in PEERS if name in result)):
        one = result[side]
        figures = ("-" if one["scores"][name] is None else f"{one['scores'][name]:.1f}" for name in sets)
        cells = (f"   {figure:>{max(8, len(name))}}" for name, figure in zip(sets, figures, strict=True))
        lines.append("".join([f"{side:<10}{one['seconds']:9.1f}", *cells]))
    return "\n".join([*lines, f"ours is {result['times_as_fast_as_peer']:.3g} times as fast"])


if __name__ == "__main__":
    sys.exit(main())
