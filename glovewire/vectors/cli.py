"""Implement the commands that read artifacts: `neighbours`, `evaluate`, `export`, `subwords`, `info`.

Heavy modules are imported inside the command, so that `glovewire --help` stays fast.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command, suggest
from glovewire.common.errors import UnknownWord, UsageError
from glovewire.common.text import printable

if TYPE_CHECKING:
    from glovewire.common.model.neighbours import Neighbours, UnitVectors

FORMATS = ("glove", "word2vec", "word2vec-bin", "npz", "safetensors", "fasttext-bin", "projector", "run", "stanford")
_PLACE = click.Path(path_type=Path)
_DATASET = click.option(
    "--dataset", type=_PLACE, help="The dataset that a checkpoint was trained on, unless config.toml names it."
)
_CENTRE = "Subtract the mean of all vectors first."


@click.command(cls=Command)
@click.argument("run", type=_PLACE)
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--analogy", nargs=3, multiple=True, metavar="A B C", help="A is to B as C is to ...? Repeatable.")
@click.option("--top", type=click.IntRange(min=1), default=10, help="Words to show for each question.")
@click.option("--centre", is_flag=True, help=_CENTRE)
@_DATASET
def neighbours(
    run: Path,
    words: tuple[str, ...],
    analogy: tuple[tuple[str, str, str], ...],
    top: int,
    centre: bool,
    dataset: Path | None,
) -> dict[str, Any]:
    """Show the words nearest to each WORD by cosine, and answers to analogies.

    RUN may also be a checkpoint, or a file of vectors: GloVe's text, word2vec's text or binary, a fastText model, npz
    or safetensors, plain or compressed. If n-grams are known, the vector of an unseen word is composed of those of its
    n-grams.
    """
    if not words and not analogy:
        raise UsageError("name a word, or an analogy with --analogy A B C")
    from glovewire.common.model.neighbours import UnitVectors

    from . import show
    from .read import read_vectors

    loaded = read_vectors(run, dataset)
    vectors = UnitVectors.of(loaded.words, loaded.vectors, loaded.subwords, centre=centre)
    asked = dict.fromkeys([*words, *(word for each in analogy for word in each)])
    places = {word: place for word in asked if (place := vectors.look_up(word)) is not None}
    found = [(word, vectors.nearest(places[word], top)) for word in words if word in places]
    known = [each for each in analogy if all(word in places for word in each)]
    answers = [(each, vectors.analogy([places[word] for word in each], top)) for each in known]
    composed = [word for word, place in places.items() if place.row is None]
    shown = {word: f"{word} (composed)" if word in composed else word for word in places}
    titled = [(shown[word], best) for word, best in found]
    titled += [(f"{shown[a]} : {shown[b]} = {shown[c]} : ?", best) for (a, b, c), best in answers]
    _print(show.columns(titled, shutil.get_terminal_size((100, 24)).columns))
    if unknown := [word for word in asked if word not in places]:
        raise _unknown_word(vectors, unknown)
    return {
        "neighbours": {word: _as_dicts(best) for word, best in found},
        "analogies": [{"a": a, "b": b, "c": c, "answers": _as_dicts(best)} for (a, b, c), best in answers],
        "composed": composed,
    }


@click.command(cls=Command)
@click.argument("places", metavar="RUN", type=_PLACE, nargs=-1, required=True)
@click.option(
    "--similarity",
    type=_PLACE,
    multiple=True,
    metavar="FILE...",
    help="Word pairs with human scores (`word word score` lines, or CSV): Spearman's rank correlation. Takes several "
    "files.",
)
@click.option("--analogies", type=_PLACE, metavar="FILE", help="Analogy questions in Google's format: 3CosAdd.")
@click.option("--centre", is_flag=True, help=_CENTRE)
@click.option("--unseen", is_flag=True, help="Also score with unseen words, composed of their n-grams.")
@_DATASET
def evaluate(
    places: tuple[Path, ...],
    similarity: tuple[Path, ...],
    analogies: Path | None,
    centre: bool,
    unseen: bool,
    dataset: Path | None,
) -> dict[str, Any]:
    """Score the vectors of RUN on word similarity and analogies.

    Figures are percent. A word is looked up as it is written, then in lower case. Pairs and questions with a word
    outside the vocabulary are left out; the number covered is shown beside each figure. RUN may be anything
    that `glovewire neighbours` takes.
    """
    run, similarity = _split_places(places, similarity)
    if not similarity and analogies is None:
        raise UsageError("name something to score against: --similarity FILE or --analogies FILE")
    from . import show
    from .evaluate import score
    from .read import read_vectors

    loaded = read_vectors(run, dataset)
    if unseen and loaded.subwords is None:
        raise UsageError(f"--unseen needs n-grams, and {run} has none: fit them with `glovewire subwords`")
    subwords = loaded.subwords if unseen else None
    result = score(loaded.words, loaded.vectors, similarity, analogies, centre=centre, subwords=subwords)
    _print(show.scores(result))
    return {"run": str(run), **result}


@click.command(cls=Command)
@click.argument("path", type=_PLACE)
@click.option("--format", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="File or folder to make, which must not exist; compressed if the name ends in .gz, .bz2, .xz or .zst; - is "
    "standard output.",
)
@click.option("--centre", is_flag=True, help=_CENTRE)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Order of the records in `stanford`.")
@_DATASET
def export(path: Path, format: str, out: Path, centre: bool, seed: int, dataset: Path | None) -> dict[str, Any] | None:
    """Write vectors or a dataset's matrix for other programs.

    Vectors go to glove, word2vec, word2vec-bin, npz, safetensors, projector, run (a folder as `train` writes it) or
    fasttext-bin (with n-grams; for fastText and gensim); a dataset to npz (scipy's COO) or stanford (a folder on which
    Stanford's `glove` trains). A run's words are sorted by frequency, the most frequent first, as in Stanford's and
    word2vec's own files. PATH may be a dataset, or anything that `glovewire neighbours` takes.
    """
    from . import show
    from .export import STDOUT
    from .export import export as write

    result = write(path, format, out, centre=centre, seed=seed, dataset=dataset)
    if out == STDOUT:
        return None  # a summary would be part of the output
    what = f"{result['words']:,} words" + (f", {result['entries']:,} entries" if "entries" in result else "")
    click.echo(f"wrote {result['out']} ({format}: {what}, {show.size(result['bytes'])})")
    return result


@click.command(cls=Command)
@click.argument("path", type=_PLACE)
@click.option("--out", type=_PLACE, required=True, help="Run folder to make; it must not exist.")
@click.option(
    "--factor",
    type=click.FloatRange(min=0),
    metavar="K",
    show_default="train's --subwords",
    help="Weight of a word's n-grams relative to its own vector; 0 leaves the vectors as they are.",
)
def subwords(path: Path, out: Path, factor: float | None) -> dict[str, Any]:
    """Fit vectors of character n-grams to the vectors of a run, as `train --subwords` does at its end.

    PATH is a run trained with --subwords 0, or a file of vectors without n-grams, as for `glovewire neighbours`.
    """
    from . import show
    from .subwords import add_subwords

    result = add_subwords(path, out, factor)
    click.echo(
        f"wrote {result['run']}: {result['words']:,} words, {result['ngrams']:,} n-grams "
        f"({show.size(result['bytes'])}) with weight {result['factor']:g}"
    )
    return result


@click.command(cls=Command)
@click.argument("path", type=_PLACE)
@click.option("--verify/--no-verify", default=True, help="Compare every checksum (about 1 GB/s).")
def info(path: Path, verify: bool) -> dict[str, Any]:
    """Describe a dataset, a run, a checkpoint or a file of vectors, and check that it is complete."""
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


def _unknown_word(vectors: UnitVectors, words: list[str]) -> UnknownWord:
    """Return the error for words that are neither known nor can be composed, with a suggestion for each."""

    def told(word: str) -> str:
        like = [known for known in vectors.words if abs(len(known) - len(word)) <= 2]
        return f"{word!r} is not among the {len(vectors.words):,} words of the vocabulary{suggest(word.lower(), like)}"

    return UnknownWord("; ".join(map(told, words)))


def _as_dicts(near: Neighbours) -> list[dict[str, Any]]:
    return [{"word": word, "cosine": round(cosine, 4)} for word, cosine in near]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))  # words and facts come from files of unknown origin
