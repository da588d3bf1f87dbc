"""Measure preprocessing for `glovewire bench preprocess`: speed and memory, with new processes for each run."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from glovewire.common.cli.config_file import configured
from glovewire.preprocess.config import PreprocessConfig
from glovewire.preprocess.corpus.readers import LineBatch, read_batches, text_error
from glovewire.preprocess.corpus.sources import find_corpus
from glovewire.preprocess.tokens.encoder import Encoder
from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer

from ..launch.processes import Children
from .config import PreprocessBenchConfig
from .measurements import surroundings


def bench(config: PreprocessBenchConfig) -> dict[str, Any]:
    """Measure the tokeniser alone, then `runs` preprocessing runs; return their figures."""
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        result = facts(config)
        runs = [preprocess(config.of_run(Path(folder, f"dataset{n}"))) for n in range(config.runs)]
    return {**result, "runs": runs, "best": min(run["total"] for run in runs)}


def facts(config: PreprocessBenchConfig) -> dict[str, Any]:
    """Return the surroundings, name and size of the corpus, and the speed of the tokeniser alone."""
    about = {"corpus": config.corpus.name, "bytes": config.corpus.stat().st_size}
    speeds = tokenizer_speeds(replace(config.of_run(Path("unused")), lines=config.sample))
    return {**surroundings(("glovewire", "numpy", "numba", "nltk")), **about, "tokeniser": speeds}


def tokenizer_speeds(config: PreprocessConfig) -> dict[str, float]:
    """Return tokens per second in one process of NLTK and of Encoder with an empty and a full memo, and the ratios."""
    nltk, batches = NltkTokenizer(), list(text_batches(config))
    nltk.line("")
    encoder = Encoder(nltk)

    def encode(some: list[LineBatch]) -> int:
        return sum(int((encoder.encode(each.text, each.starts, each.stops, 0) > 0).sum()) for each in some)

    encode(batches[:1])  # loads the compiled code
    encoder.clear()
    began = time.perf_counter()
    tokens = encode(batches)
    cold = time.perf_counter() - began
    began = time.perf_counter()
    encode(batches)
    warm = time.perf_counter() - began
    texts = [batch.text[a:b] for batch in batches for a, b in zip(batch.starts, batch.stops, strict=True)]
    began = time.perf_counter()
    for text in texts:
        nltk.line(text.decode().lower())
    reference = time.perf_counter() - began
    seconds = {"nltk": reference, "cold": cold, "warm": warm}
    speeds = {f"{name}_tokens_per_second": round(tokens / took) for name, took in seconds.items()}
    return speeds | {"cold_ratio": round(reference / cold, 2), "warm_ratio": round(reference / warm, 2)}


def preprocess(config: PreprocessConfig) -> dict[str, Any]:
    """Preprocess once; return seconds and tokens/s of each phase, total seconds, and peak memory."""
    logs = config.out.parent / "logs"
    words = configured("preprocess", config, logs / "preprocess.toml")
    began = time.perf_counter()
    with Children(logs) as children:
        child = children.start("glovewire preprocess", [*words, "--json"])
        child.process.wait()
    total = time.perf_counter() - began
    found = child.facts()
    kept = ("tokens", "entries", "seconds", "peak_memory_bytes")
    speeds = {name: round(found["tokens"] / took) for name, took in found["seconds"].items() if took}
    return {name: found[name] for name in kept} | {"total": round(total, 3), "tokens_per_second": speeds}


def text_batches(config: PreprocessConfig) -> Iterator[LineBatch]:
    """Yield the lines that `config` reads of its corpus in batches; raise CorpusError if they are not text."""
    for split in find_corpus(config).splits():
        for batch in read_batches(split, config.text_column, config.longest_line):
            try:
                text = batch.text.decode()
            except UnicodeDecodeError as error:
                raise text_error(split, batch, str(error)) from error
            if "\0" in text:
                raise text_error(split, batch, "a NUL byte")
            yield batch


def table(result: dict[str, Any]) -> str:
    """Return the result of `bench` as text."""
    tokens = result["tokeniser"]
    best = min(result["runs"], key=lambda run: run["total"])
    phases = ", ".join(f"{name} {took:.2f}" for name, took in best["seconds"].items())
    return (
        f"tokeniser: {tokens['cold_tokens_per_second']:,} tokens/s cold, {tokens['warm_tokens_per_second']:,} warm:"
        f" {tokens['cold_ratio']} and {tokens['warm_ratio']} times NLTK\n"
        f"preprocess: {best['total']:.2f} s for {best['tokens']:,} tokens ({phases});"
        f" peak memory {best['peak_memory_bytes'] / (1 << 20):,.0f} MiB"
    )
