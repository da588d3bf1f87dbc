"""Implement `glovewire preprocess`: make a dataset on disk and print a short summary."""

from typing import Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes
from glovewire.common.text import printable

from .config import PreprocessConfig

_FEW = 5


@click.command("preprocess", cls=Command)
@takes(PreprocessConfig)
def preprocess(given: Given[PreprocessConfig]) -> dict[str, Any]:
    """Make a dataset (vocabulary and co-occurrence counts) from text.

    CORPUS is one or more of: pydoc (documentation that every Python carries), wikitext-2-raw-v1,
    wikitext-103-raw-v1, hf:NAME[:CONFIG] (Hugging Face, needs a network), a .txt, .jsonl or .parquet file, plain or
    as .gz .xz .zst .bz2, a folder of such files, the URL of either in a store (s3://bucket/text/*.txt), or - for
    standard input. Each line (or row) is a text of its own.
    """
    from glovewire.common import log

    from .pipeline import run

    config = given.config()
    log.configure("info", "preprocess")
    result = run(config)
    click.echo(_summary(result))
    return result


def _made_of_text(result: dict[str, Any]) -> list[str]:
    """Return summary lines about the text: words left out, the rarest word, abbreviations."""
    rarest = result["rarest_count"]
    lines = [
        f"{result['outside_vocabulary']:.1%} of the tokens are outside the vocabulary; its rarest word occurs"
        f" {'once' if rarest == 1 else f'{rarest:,} times'}"
    ]
    if rarest < _FEW:
        lines[0] += f", too few to learn much of it; --min-count {_FEW} leaves such words out"
    for title, name in (("left out", "most_frequent_left_out"), ("abbreviations", "most_frequent_abbreviations")):
        if found := result.get(name):
            lines.append(f"most frequent {title}: " + ", ".join(f"{word} {count:,}" for word, count in found.items()))
    return lines


def _summary(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    requested, words = result["requested_vocabulary"], result["words"]
    count = result["lines"]
    in_lines = "" if count is None else " in 1 line" if count == 1 else f" in {count:,} lines"
    lines = [
        f"{result['path']}: {words:,} words, {result['entries']:,} entries (density {result['density']:.4f}),"
        f" sum {result['sum']:,.1f}",
        f"{result['tokens']:,} tokens{in_lines} of {result['corpus']}",
        f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{name} {took:.1f}" for name, took in seconds.items()),
    ]
    if result["lines"] is not None:
        lines += _made_of_text(result)
    if words < requested:
        often = f" that occur {least:,} times or more" if (least := result.get("min_count") or 1) > 1 else ""
        lines.append(
            f"the corpus has {words:,} words{often}, fewer than the {requested:,} requested: all of them are kept"
        )
    return "\n".join(map(printable, lines))
