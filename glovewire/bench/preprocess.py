"""`glovewire bench preprocess`: how fast text becomes a dataset, in which memory, and beside which peer.

Every measured program runs in a process of its own, on the same text, one after the other. A peer is a Stanford GloVe
that the user has built; it is given text that is tokenised already, while ours begins with raw text.
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

if TYPE_CHECKING:
    from glovewire.preprocess.config import PreprocessConfig
    from glovewire.preprocess.corpus.readers import Batch

_PEER_STEPS = ("vocab_count", "cooccur", "shuffle")
_SAMPLE_BATCH = 512
_LONGEST_LINE = 1 << 28


@click.command("bench-preprocess", cls=Command)
@takes(PreprocessBenchConfig)
def command(given: Given[PreprocessBenchConfig]) -> dict[str, Any]:
    """Measure preprocessing of CORPUS, a file of texts as `glovewire preprocess` takes it."""
    config = given.config()
    corpus = config.corpus
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        tools = None if config.peer is None else Peer(config, Path(folder))
        result: dict[str, Any] = {"corpus": corpus.name, "bytes": corpus.stat().st_size, "runs": [], "peer": []}
        result["tokeniser"] = tokeniser(corpus, config.sample)
        for n in range(config.runs):
            result["runs"].append(_ours(config.of_run(Path(folder) / f"dataset{n}"), Path(folder) / "logs"))
            if tools is not None:
                result["peer"].append(tools.run())
    result |= _ratios(result) | {"versions": _versions()}
    click.echo(_table(result))
    return result


def tokeniser(corpus: Path, lines: int) -> dict[str, float]:
    """Tokens a second of one process: NLTK, ours with an empty memo, ours with a full one; and the ratios."""
    from glovewire.preprocess.tokens.encoder import Encoder
    from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer

    nltk = NltkTokenizer()
    nltk.load()
    texts = [
        batch.text[a:b] for batch in _batches(corpus, lines) for a, b in zip(batch.starts, batch.stops, strict=True)
    ]
    encoder = Encoder(nltk)
    _encode(encoder, texts[:_SAMPLE_BATCH])  # compiled code is loaded
    encoder.forget()
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


class Peer:
    """Stanford's three tools on the tokenised text."""

    def __init__(self, config: PreprocessBenchConfig, folder: Path) -> None:
        assert config.peer is not None
        tools = config.peer
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
        """Seconds of each tool, and of all."""
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


def _batches(corpus: Path, lines: int | None) -> Iterator[Batch]:
    """The corpus, or its first lines, as text; CorpusError where it is none."""
    from glovewire.preprocess.corpus.readers import batches, fault
    from glovewire.preprocess.corpus.sources import Selection, find

    for block in find((str(corpus),), Selection(lines, "text", "train", _LONGEST_LINE)).blocks():
        for batch in batches(block, "text", _LONGEST_LINE):
            try:
                text = batch.text.decode()
            except UnicodeDecodeError as error:
                raise fault(block, batch, str(error)) from error
            if "\0" in text:
                raise fault(block, batch, "a NUL byte")
            yield batch


def _encode(encoder: Any, texts: list[bytes]) -> int:
    """Tokenise all texts; how many tokens they have."""
    return sum(int((ids > 0).sum()) for ids in _streams(encoder, texts))


def _streams(encoder: Any, texts: list[bytes]) -> Iterator[Any]:
    from glovewire.preprocess.tokens.string_table import packed

    for at in range(0, len(texts), _SAMPLE_BATCH):
        some = [text.lower() for text in texts[at : at + _SAMPLE_BATCH]]
        _, starts, stops = packed(some)
        yield encoder.encode(b"".join(some), starts, stops, 0)


def _write_tokens(corpus: Path, out: IO[bytes]) -> None:
    """The corpus with its tokens set apart by blanks, a line a line: what Stanford's tools read."""
    from glovewire.preprocess.tokens.encoder import Encoder
    from glovewire.preprocess.tokens.nltk_tokens import NltkTokenizer

    encoder = Encoder(NltkTokenizer())
    for batch in _batches(corpus, None):
        out.write(encoder.spelt(encoder.encode(batch.text, batch.starts, batch.stops, 0)))


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    packages = ("glovewire", "numpy", "numba", "nltk")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def _table(result: dict[str, Any]) -> str:
    tokens = result["tokeniser"]
    best = min(result["runs"], key=lambda run: run["total"])
    phases = ", ".join(f"{name} {took:.2f}" for name, took in best["seconds"].items())
    lines = [
        f"tokeniser: {tokens['cold_tokens_per_second']:,} tokens/s cold, {tokens['warm_tokens_per_second']:,} warm:"
        f" {tokens['cold_ratio']} and {tokens['warm_ratio']} times NLTK",
        f"preprocess: {best['total']:.2f} s for {best['tokens']:,} tokens ({phases});"
        f" at most {best['peak_memory_bytes'] / (1 << 20):,.0f} MiB",
    ]
    if "ratio" in result:
        lines.append(f"peer: {result['peer_best']:.2f} s on tokenised text; ours takes {result['ratio']} of it")
    return "\n".join(lines)
