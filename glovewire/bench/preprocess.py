"""Measure preprocessing for `glovewire bench preprocess`: speed, memory, and Stanford's tools on the same text.

Every program runs in a process of its own, one after the other. The peer is a Stanford GloVe that the user has built;
it gets text that is tokenised already, while Glovewire begins with raw text.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.config_file import configured
from glovewire.common.cli.options import Given, takes
from glovewire.common.errors import CorpusError, ProcessDied

from ..launch.processes import Children
from .config import PreprocessBenchConfig
from .measurements import surroundings

if TYPE_CHECKING:
    from glovewire.preprocess.config import PreprocessConfig
    from glovewire.preprocess.corpus.readers import LineBatch

_PEER_STEPS = ("vocab_count", "cooccur", "shuffle")
_SAMPLE_BATCH = 512
_LONGEST_LINE = 1 << 28


@click.command("bench-preprocess", cls=Command)
@takes(PreprocessBenchConfig)
def command(given: Given[PreprocessBenchConfig]) -> dict[str, Any]:
    """Measure preprocessing of CORPUS, a file of texts as `glovewire preprocess` takes it."""
    config = given.config()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        tools = None if config.peer is None else StanfordTools(config.peer, config, Path(folder))
        result = surroundings(("glovewire", "numpy", "numba", "nltk"))
        result |= {"corpus": config.corpus.name, "bytes": config.corpus.stat().st_size, "runs": [], "peer": []}
        result["tokeniser"] = tokenizer_speeds(config.corpus, config.sample)
        for n in range(config.runs):
            result["runs"].append(_ours(config.of_run(Path(folder) / f"dataset{n}"), Path(folder) / "logs"))
            if tools is not None:
                result["peer"].append(tools.run())
    result |= _ratios(result)
    click.echo(_table(result))
    return result


def tokenizer_speeds(corpus: Path, lines: int) -> dict[str, float]:
    """Return tokens per second of one process: NLTK, ours with an empty memo and with a full one; and the ratios."""
    from glovewire.preprocess.tokens.encoder import Encoder
    from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer

    nltk = NltkTokenizer()
    nltk.line("")
    texts = [
        batch.text[a:b] for batch in _batches(corpus, lines) for a, b in zip(batch.starts, batch.stops, strict=True)
    ]
    encoder = Encoder(nltk)
    _encode(encoder, texts[:_SAMPLE_BATCH])  # loads the compiled code
    encoder.clear()
    began = time.perf_counter()
    tokens = _encode(encoder, texts)
    cold = time.perf_counter() - began
    began = time.perf_counter()
    _encode(encoder, texts)
    warm = time.perf_counter() - began
    began = time.perf_counter()
    for text in texts:
        nltk.line(text.decode().lower())
    reference = time.perf_counter() - began
    seconds = {"nltk": reference, "cold": cold, "warm": warm}
    speeds = {f"{name}_tokens_per_second": round(tokens / took) for name, took in seconds.items()}
    return speeds | {"cold_ratio": round(reference / cold, 2), "warm_ratio": round(reference / warm, 2)}


class StanfordTools:
    """Runs Stanford's three tools on the tokenised text."""

    def __init__(self, tools: Path, config: PreprocessBenchConfig, folder: Path) -> None:
        self._folder = folder
        self._text = folder / "tokenised.txt"
        found = [next((p for p in (tools / "build" / name, tools / name) if p.is_file()), None) for name in _PEER_STEPS]
        if None in found:
            raise CorpusError(f"--peer {tools} has no {', '.join(_PEER_STEPS)}: build Stanford's GloVe there")
        gigabytes = ["-memory", str(config.memory / (1 << 30)), "-verbose", "0"]
        count = ["-min-count", "1", "-max-vocab", str(config.vocab_size), "-verbose", "0"]
        near = ["-vocab-file", str(folder / "vocab"), "-window-size", str(config.window), "-symmetric", "1"]
        near += ["-overflow-file", str(folder / "overflow")]
        self._steps = [
            ("vocab_count", [str(found[0]), *count], self._text, folder / "vocab"),
            ("cooccur", [str(found[1]), *near, *gigabytes], self._text, folder / "cooc"),
            ("shuffle", [str(found[2]), *gigabytes, "-temp-file", str(folder / "temp")], folder / "cooc", folder / "s"),
        ]
        with self._text.open("wb") as out:
            _write_tokens(config.corpus, out)

    def run(self) -> dict[str, float]:
        """Run all tools; return the seconds of each and their total."""
        seconds = {}
        for name, arguments, source, target in self._steps:
            with source.open("rb") as stdin, target.open("wb") as stdout:
                began = time.perf_counter()
                done = subprocess.run(arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False)
                seconds[name] = round(time.perf_counter() - began, 3)
            if done.returncode:
                raise ProcessDied(f"{name} ended with status {done.returncode}: {done.stderr.decode()[-200:].strip()}")
        return seconds | {"total": round(sum(seconds.values()), 3)}


def _ours(config: PreprocessConfig, logs: Path) -> dict[str, Any]:
    words = configured("preprocess", config, logs / "preprocess.toml")
    began = time.perf_counter()
    with Children(logs) as children:
        child = children.start("glovewire preprocess", [*words, "--json"])
        child.process.wait()
    total = time.perf_counter() - began
    if child.failed:
        raise child.died()
    facts = child.facts()
    kept = ("tokens", "entries", "seconds", "peak_memory_bytes")
    speeds = {name: round(facts["tokens"] / took) for name, took in facts["seconds"].items() if took}
    return {name: facts[name] for name in kept} | {"total": round(total, 3), "tokens_per_second": speeds}


def _ratios(result: dict[str, Any]) -> dict[str, Any]:
    ours = min(run["total"] for run in result["runs"])
    if not result["peer"]:
        return {"best": ours}
    theirs = min(run["total"] for run in result["peer"])
    return {"best": ours, "peer_best": theirs, "ratio": round(ours / theirs, 3)}


def _batches(corpus: Path, lines: int | None) -> Iterator[LineBatch]:
    """Yield the corpus, or its first lines; CorpusError if it is not text."""
    from glovewire.preprocess.corpus.readers import read_batches, text_error
    from glovewire.preprocess.corpus.sources import Selection, find_corpus

    for split in find_corpus((str(corpus),), Selection(lines, "text", "train", _LONGEST_LINE)).splits():
        for batch in read_batches(split, "text", _LONGEST_LINE):
            try:
                text = batch.text.decode()
            except UnicodeDecodeError as error:
                raise text_error(split, batch, str(error)) from error
            if "\0" in text:
                raise text_error(split, batch, "a NUL byte")
            yield batch


def _encode(encoder: Any, texts: list[bytes]) -> int:
    """Tokenise all texts and return their number of tokens."""
    return sum(int((ids > 0).sum()) for ids in _streams(encoder, texts))


def _streams(encoder: Any, texts: list[bytes]) -> Iterator[Any]:
    from glovewire.preprocess.tokens.string_table import packed

    for at in range(0, len(texts), _SAMPLE_BATCH):
        some = [text.lower() for text in texts[at : at + _SAMPLE_BATCH]]
        _, starts, stops = packed(some)
        yield encoder.encode(b"".join(some), starts, stops, 0)


def _write_tokens(corpus: Path, out: IO[bytes]) -> None:
    """Write the corpus with blanks between its tokens, line by line, as Stanford's tools read it."""
    from glovewire.preprocess.tokens.encoder import Encoder
    from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer

    encoder = Encoder(NltkTokenizer())
    for batch in _batches(corpus, None):
        out.write(encoder.decode(encoder.encode(batch.text, batch.starts, batch.stops, 0)))


def _table(result: dict[str, Any]) -> str:
    tokens = result["tokeniser"]
    best = min(result["runs"], key=lambda run: run["total"])
    phases = ", ".join(f"{name} {took:.2f}" for name, took in best["seconds"].items())
    lines = [
        f"tokeniser: {tokens['cold_tokens_per_second']:,} tokens/s cold, {tokens['warm_tokens_per_second']:,} warm:"
        f" {tokens['cold_ratio']} and {tokens['warm_ratio']} times NLTK",
        f"preprocess: {best['total']:.2f} s for {best['tokens']:,} tokens ({phases});"
        f" peak memory {best['peak_memory_bytes'] / (1 << 20):,.0f} MiB",
    ]
    if "ratio" in result:
        lines.append(f"peer: {result['peer_best']:.2f} s on tokenised text; Glovewire takes {result['ratio']} of that")
    return "\n".join(lines)
