"""Implement the commands that read artifacts: `neighbours`, `evaluate`, `export`, `info`.

Heavy modules are imported inside the command, so that `glovewire --help` stays fast.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command, printable, suggest
from glovewire.common.errors import UnknownWord, UsageError

if TYPE_CHECKING:
    from glovewire.common.model.neighbours import Neighbours, UnitVectors

FORMATS = ("glove", "word2vec", "word2vec-bin", "npz", "safetensors", "projector", "stanford")
_PLACE = click.Path(path_type=Path)
_CENTRE = "Subtract the mean of all vectors first."


@click.command(cls=Command)
@click.argument("run", type=_PLACE)
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--analogy", nargs=3, multiple=True, metavar="A B C", help="A is to B as C is to ...? Repeatable.")
@click.option("--top", type=click.IntRange(min=1), default=10, help="Words to show for each question.")
@click.option("--centre", is_flag=True, help=_CENTRE)
def neighbours(
    run: Path, words: tuple[str, ...], analogy: tuple[tuple[str, str, str], ...], top: int, centre: bool
) -> dict[str, Any]:
    """Show the words nearest to each WORD by cosine, and answers to analogies."""
    if not words and not analogy:
        raise UsageError("name a word, or an analogy with --analogy A B C")
    from glovewire.common.model.neighbours import UnitVectors, unit_rows
    from glovewire.common.storage.run_folder import load_vectors

    from . import show

    loaded = load_vectors(run)
    vectors = UnitVectors(loaded.words, unit_rows(loaded.vectors, centre=centre))
    found = [(word, vectors.nearest(_row(vectors, word), top)) for word in words]
    answers = [(each, vectors.analogy([_row(vectors, word) for word in each], top)) for each in analogy]
    titled = found + [(f"{a} : {b} = {c} : ?", best) for (a, b, c), best in answers]
    _print(show.columns(titled, shutil.get_terminal_size((100, 24)).columns))
    return {
        "neighbours": {word: _as_dicts(best) for word, best in found},
        "analogies": [{"a": a, "b": b, "c": c, "answers": _as_dicts(best)} for (a, b, c), best in answers],
    }


@click.command(cls=Command)
@click.argument("places", metavar="RUN", type=_PLACE, nargs=-1, required=True)
@click.option(
    "--similarity",
    type=_PLACE,
    multiple=True,
    metavar="FILE...",
    help="Word pairs with human scores (`word word score` lines): Spearman's rank correlation. Takes several files.",
)
@click.option("--analogies", type=_PLACE, metavar="FILE", help="Analogy questions in Google's format: 3CosAdd.")
@click.option("--centre", is_flag=True, help=_CENTRE)
def evaluate(
    places: tuple[Path, ...], similarity: tuple[Path, ...], analogies: Path | None, centre: bool
) -> dict[str, Any]:
    """Score the vectors of RUN on word similarity and analogies.

    Figures are percent. A word is looked up as it is written, then in lower case. Pairs and questions with a word
    outside the vocabulary are left out; the number covered is shown beside each figure.
    """
    run, similarity = _split_places(places, similarity)
    if not similarity and analogies is None:
        raise UsageError("name something to score against: --similarity FILE or --analogies FILE")
    from glovewire.common.storage.run_folder import load_vectors

    from . import show
    from .evaluate import score

    loaded = load_vectors(run)
    result = score(loaded.words, loaded.vectors, similarity, analogies, centre=centre)
    _print(show.scores(result))
    return {"run": str(run), **result}


@click.command(cls=Command)
@click.argument("path", type=_PLACE)
@click.option("--format", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--out", type=_PLACE, required=True, help="File or folder to make; it must not exist.")
@click.option("--centre", is_flag=True, help=_CENTRE)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Order of the records in `stanford`.")
def export(path: Path, format: str, out: Path, centre: bool, seed: int) -> dict[str, Any]:
    """Write a run's vectors or a dataset's matrix for other programs.

    A run goes to glove, word2vec, word2vec-bin, npz, safetensors or projector; a dataset to npz (scipy's COO) or
    stanford (a folder on which Stanford's `glove` trains). A run's words are sorted by frequency, the most frequent
    first, as in Stanford's and word2vec's own files.
    """
    from . import show
    from .export import export as write

    result = write(path, format, out, centre=centre, seed=seed)
    what = f"{result['words']:,} words" + (f", {result['entries']:,} entries" if "entries" in result else "")
    click.echo(f"wrote {out} ({format}: {what}, {show.size(result['bytes'])})")
    return result


@click.command(cls=Command)
@click.argument("path", type=_PLACE)
@click.option("--verify/--no-verify", default=True, help="Compare every checksum (about 1 GB/s).")
def info(path: Path, verify: bool) -> dict[str, Any]:
    """Describe a dataset, a run or a checkpoint, and check that it is complete."""
    from . import show
    from .info import describe

    described = describe(path, verify=verify)
    _print(show.facts(described))
    return described


def _split_places(places: tuple[Path, ...], similarity: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    """Return the run and the pair files; click puts the second file of `--similarity FILE FILE` into `places`.

    The run is the only folder among `places`, or else the first of them.
    """
    folders = [place for place in places if place.is_dir()]
    run = folders[0] if len(folders) == 1 else places[0]
    more = tuple(place for place in places if place != run)
    if more and not similarity:
        raise UsageError(f"{more[0]} comes after the run: did you mean --similarity {more[0]}?")
    return run, similarity + more


def _row(vectors: UnitVectors, word: str) -> int:
    """Return the row of `word`; UnknownWord, with a suggestion, if `word` is not in the vocabulary."""
    if (row := vectors.find(word)) is not None:
        return row
    like = [known for known in vectors.words if abs(len(known) - len(word)) <= 2]
    known = f"the {len(vectors.words):,} words of the vocabulary"
    raise UnknownWord(f"{word!r} is not among {known}{suggest(word.lower(), like)}")


def _as_dicts(near: Neighbours) -> list[dict[str, Any]]:
    return [{"word": word, "cosine": round(cosine, 4)} for word, cosine in near]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))  # words and facts come from files of unknown origin
