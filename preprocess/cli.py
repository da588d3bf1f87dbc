"""The command `glovewire preprocess`: options in, a dataset on disk, a short summary out.

Imports nothing heavy until it runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from glovewire.common.cli.command import Command

from .config import TOKENIZERS, WEIGHTINGS, PreprocessConfig, parse_memory


def _processes() -> int:
    return len(os.sched_getaffinity(0))


def _memory(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        return parse_memory(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("preprocess", cls=Command)
@click.argument("corpus", nargs=-1, type=click.Path())
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The dataset: a new folder.")
@click.option("--vocab-size", default=32_000, help="Keep the most frequent words, this many.")
@click.option("--min-count", default=1, help="Keep only words that come at least this often.")
@click.option("--window", default=5, help="Count pairs up to this distance, 1 to 15.")
@click.option("--processes", default=_processes, show_default="cores", type=int, help="Worker processes.")
@click.option("--memory", default="4GB", callback=_memory, help="For all processes together.")
@click.option("--tokenizer", default="nltk", type=click.Choice(TOKENIZERS), help="whitespace: tokenised already.")
@click.option("--lines", type=int, help="Take only the first lines.")
@click.option("--text-column", default="text", help="Where the text is, in jsonl, parquet and data sets.")
@click.option("--split", default="train", help="Which part of a data set.")
@click.option("--partitions", type=int, show_default="by size", help="Parts of the vocabulary for training.")
@click.option("--tile", default=256, help="Rows of a tile, inside a block.")
@click.option("--seed", default=0, help="Of the permutation of the rows.")
@click.option("--symmetric/--left-only", default=True, help="Count both sides of a word, or its left side.")
@click.option("--weighting", default="distance", type=click.Choice(WEIGHTINGS), help="1/distance, or 1 for each pair.")
@click.option(
    "--engine", default="local", type=click.Choice(["local", "ray"]), help="Who runs the processes, and where."
)
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster, such as auto; without it Ray runs here alone.")
@click.option("--resume", is_flag=True, help="Go on where the same command was interrupted.")
@click.option(
    "--from-stanford",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="COOC VOCAB",
    help="Instead of a CORPUS: counts made by Stanford's GloVe.",
)
def preprocess(**options: Any) -> dict[str, Any]:
    """Make a dataset (vocabulary and co-occurrence counts) from text.

    CORPUS is one or more of: pydoc (documentation that every Python carries), wikitext-2-raw-v1, wikitext-103-raw-v1,
    hf:NAME[:CONFIG] (Hugging Face, needs a network), a .txt, .jsonl or .parquet file, plain or as .gz .xz .zst .bz2, a
    folder of such files, or - for standard input. Each line (or row) is a text of its own.
    """
    from glovewire.common import log

    from .run import run

    config = PreprocessConfig(**options)
    config.check()
    log.configure("info", "preprocess")
    result = run(config)
    click.echo(_summary(result))
    return result


def _summary(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    asked, words = result["requested_vocabulary"], result["words"]
    lines = [
        f"{result['path']}: {words:,} words, {result['entries']:,} entries (density {result['density']:.4f}),"
        f" sum {result['sum']:,.1f}",
        f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{name} {took:.1f}" for name, took in seconds.items()),
    ]
    in_lines = "" if result["lines"] is None else f" in {result['lines']:,} lines"
    lines.insert(1, f"{result['tokens']:,} tokens{in_lines} of {result['corpus']}")
    if words < asked:
        lines.append(f"the corpus has {words:,} words, fewer than the {asked:,} asked for: all of them are kept")
    return "\n".join(lines)
