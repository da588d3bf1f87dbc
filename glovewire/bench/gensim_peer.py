"""`glovewire bench train --peer-gensim`: training time and scores beside gensim's skip-gram on the same text.

gensim walks through the text, so it gets the tokens of the dataset's vocabulary, in its own fast format (one file, read
by its compiled loops). Making that file and building the vocabulary is no part of what is timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import MissingExtra, UsageError
from glovewire.common.storage.dataset import Dataset
from glovewire.common.storage.run_folder import load_vectors
from glovewire.preprocess.corpus.readers import batches
from glovewire.preprocess.corpus.sources import Selection, find
from glovewire.preprocess.tokens.encoder import Encoder
from glovewire.preprocess.tokens.nltk_tokens import make_tokenizer

from ..launch.processes import Children
from ..vectors.evaluate import score
from .config import TrainBenchConfig
from .measured_run import carry_out
from .measurements import surroundings
from .train import training

LONGEST_TEXT = 64 << 20
LONGEST_LINE = 10_000
"""Words of a line that gensim reads; what follows it leaves out."""


@dataclass(frozen=True)
class Judges:
    """Test sets that both sides' vectors are scored on."""

    similarity: tuple[Path, ...] = ()
    analogies: Path | None = None

    def of(self, words: Sequence[str], vectors: npt.NDArray[np.float32]) -> dict[str, float | None]:
        """Percent by the test set's name."""
        found = score(words, vectors, self.similarity, self.analogies)
        scores = {Path(name).stem: one["spearman"] for name, one in found.get("similarity", {}).items()}
        return {**scores, **({"analogies": found["analogies"]["total"]} if "analogies" in found else {})}


def bench(config: TrainBenchConfig, text: Path, judges: Judges, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train once with each program, one after the other; seconds of training alone, scores, and the ratio."""
    dataset = Dataset.open(config.dataset)
    before = surroundings()
    theirs = _gensim(dataset, text, config, judges, tell)
    ours = _ours(config, judges)
    tell(f"glovewire: {ours['seconds']:.1f} s, {ours['scores']}")
    return {
        "surroundings": before,
        "dataset": {"name": config.dataset.name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": config.options.as_message(),
        "workers": config.workers,
        "ours": ours,
        "gensim": theirs,
        "times_as_fast_as_peer": theirs["seconds"] / ours["seconds"],
    }


def table(result: dict[str, Any]) -> str:
    """The result as text for people."""
    sets = list(result["ours"]["scores"])
    lines = ["".join([f"{'':<10}{'seconds':>9}", *(f"   {name:>8}" for name in sets)])]
    for side in ("ours", "gensim"):
        one = result[side]
        figures = ("-" if one["scores"][name] is None else f"{one['scores'][name]:.1f}" for name in sets)
        cells = (f"   {figure:>{max(8, len(name))}}" for name, figure in zip(sets, figures, strict=True))
        lines.append("".join([f"{side:<10}{one['seconds']:9.1f}", *cells]))
    return "\n".join([*lines, f"ours is {result['times_as_fast_as_peer']:.3g} times as fast"])


def _ours(config: TrainBenchConfig, judges: Judges) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        out = Path(folder) / "run"
        with Children(Path(folder) / "logs") as children:
            facts = carry_out(training(config, config.store, config.workers, out), children, "glovewire").facts or {}
        trained = load_vectors(out, verify=False)
        return {"seconds": facts["seconds"], "scores": judges.of(trained.words, trained.vectors)}


def _gensim(
    dataset: Dataset, text: Path, config: TrainBenchConfig, judges: Judges, tell: Callable[[str], None]
) -> dict[str, Any]:
    try:
        import gensim
        from gensim.models import Word2Vec
    except ImportError as error:
        raise MissingExtra("--peer-gensim needs gensim: pip install gensim") from error
    options = config.options
    with tempfile.TemporaryDirectory(prefix="glovewire-gensim-") as folder:
        corpus = Path(folder) / "tokens.txt"
        began = time.perf_counter()
        tokens = write_tokens(dataset, text, corpus)
        tell(f"gensim: {tokens:,} tokens written in {time.perf_counter() - began:.0f} s")
        model = Word2Vec(
            vector_size=options.dim, window=int(dataset.manifest.facts["window"]), sg=1, negative=5, min_count=1,
            workers=config.workers, seed=options.seed,
        )  # fmt: skip
        model.build_vocab_from_freq(dict(zip(dataset.words, dataset.counts.tolist(), strict=True)))
        began = time.perf_counter()
        model.train(corpus_file=str(corpus), total_words=tokens, epochs=config.peer_epochs)
        seconds = time.perf_counter() - began
    vectors = model.wv[list(dataset.words)]
    scores = judges.of(dataset.words, vectors)
    tell(f"gensim: {seconds:.1f} s, {scores}")
    return {"version": gensim.__version__, "epochs": config.peer_epochs, "seconds": seconds, "scores": scores}


def write_tokens(dataset: Dataset, text: Path, into: Path) -> int:
    """Write the tokens of a corpus that are words of the dataset, line by line; returns how many.

    Raises UsageError unless they are those that the dataset was counted from.
    """
    encoder, known = Encoder(make_tokenizer(str(dataset.manifest.facts["tokenizer"]))), set(dataset.words)
    corpus = find((str(text),), Selection(None, "text", "train", LONGEST_TEXT))
    written = 0
    with into.open("w", encoding="utf-8") as out:
        for block in corpus.blocks():
            for batch in batches(block, "text", LONGEST_TEXT):
                spelt = encoder.spelt(encoder.encode(batch.text, batch.starts, batch.stops, 0)).decode()
                for line in spelt.split("\n"):
                    words = [word for word in line.split(" ") if word in known]
                    for low in range(0, len(words), LONGEST_LINE):
                        out.write(" ".join(words[low : low + LONGEST_LINE]) + "\n")
                    written += len(words)
    if written != int(dataset.counts.sum()):
        raise UsageError(f"{text} is not the text that {dataset.path} was made from: other words occur in it")
    return written
