"""Look up, compare, search, score and save word vectors, with the names of gensim's KeyedVectors.

Results agree with gensim's on the same vectors. Words with equal cosines are listed in the order of their rows, so that
results are reproducible; a zero vector has the cosine 0 with every other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from glovewire.common.addresses import url_of
from glovewire.common.array_types import Floats, Indices, Rows
from glovewire.common.errors import ArtifactError, UnknownWord, UsageError, require_extra
from glovewire.common.model.neighbours import Neighbours, best
from glovewire.common.model.subwords import Subwords
from glovewire.common.storage.artifacts import nothing_there
from glovewire.common.storage.run_folder import Vectors

from .evaluate import answered
from .formats import by_frequency
from .testsets import read_pairs, read_questions

if TYPE_CHECKING:
    from gensim.models import KeyedVectors as GensimVectors

Key = str | int | npt.NDArray[np.floating[Any]]
"""A word, its row, or any vector, shape (dim,)."""
Weighted = Key | tuple[Key, float]
_ROWS_AT_ONCE = 8192
_SUGGESTED = 30_000
"""Rows, from the first, among which an error looks for the intended word; comparing all would take seconds."""
_RESTRICTED = 300_000
"""Rows, from the first, to which gensim's evaluations restrict the vocabulary by default."""


class KeyedVectors:
    """Word vectors: `vectors` is float32 of shape (words, vector_size), row i for `index_to_key[i]`.

    A word is looked up as it is written and, if no known word has a capital letter, in lower case. Where character
    n-grams are known, an unseen word gets the vector that its n-grams compose, as in gensim's FastText. Anything else
    raises UnknownWord, which is a KeyError.

    >>> import glovewire, numpy as np
    >>> wv = glovewire.KeyedVectors(["cat", "dog", "car"], np.array([[3, 1], [2, 1], [0, 1]]))
    >>> wv
    KeyedVectors(3 words, 2 dimensions)
    >>> wv["dog"]
    array([2., 1.], dtype=float32)
    >>> "dog" in wv, len(wv), wv.index_to_key, wv.key_to_index["car"]
    (True, 3, ['cat', 'dog', 'car'], 2)
    """

    def __init__(
        self,
        words: Iterable[str],
        vectors: npt.ArrayLike,
        *,
        counts: npt.ArrayLike | None = None,
        subwords: Subwords | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.index_to_key = list(words)
        with np.errstate(over="ignore"):
            self.vectors: Rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self.counts: Indices | None = None if counts is None else np.asarray(counts, dtype=np.int64)
        self.subwords = subwords
        self.facts = dict(facts or {})
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.index_to_key):
            raise UsageError(f"vectors of shape {self.vectors.shape} do not fit {len(self.index_to_key)} words")
        if len(self.key_to_index) < len(self.index_to_key):
            raise UsageError("a word occurs twice")
        if self.counts is not None and self.counts.shape != (len(self),):
            raise UsageError(f"counts of shape {self.counts.shape} do not fit {len(self)} words")
        if not np.isfinite([self.vectors.min(initial=0), self.vectors.max(initial=0)]).all():
            raise UsageError("the vectors hold NaN, infinity or a number too large for float32")

    @classmethod
    def of(cls, loaded: Vectors) -> Self:
        """Return vectors that were read from disk, the most frequent word first where counts are known."""
        loaded = by_frequency(loaded)
        return cls(loaded.words, loaded.vectors, counts=loaded.counts, subwords=loaded.subwords, facts=loaded.facts)

    # ---- words and rows

    @property
    def vector_size(self) -> int:
        """Return the number of dimensions."""
        return int(self.vectors.shape[1])

    @cached_property
    def key_to_index(self) -> dict[str, int]:
        """Return the row of each word."""
        return {word: row for row, word in enumerate(self.index_to_key)}

    @cached_property
    def norms(self) -> Rows:
        """Return the Euclidean norm of each vector, shape (words,)."""
        starts = range(0, len(self), _ROWS_AT_ONCE)
        parts = [np.linalg.norm(self.vectors[start : start + _ROWS_AT_ONCE], axis=1) for start in starts]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    @cached_property
    def _lower_case_only(self) -> bool:
        return all(word == word.lower() for word in self.index_to_key)

    def __len__(self) -> int:
        return len(self.index_to_key)

    def __repr__(self) -> str:
        ngrams = "" if self.subwords is None else f", {len(self.subwords.buckets):,} n-grams"
        return f"KeyedVectors({len(self):,} words, {self.vector_size} dimensions{ngrams})"

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._find(word) is not None

    def __getitem__(self, key: Key | Sequence[Key]) -> Rows:
        if isinstance(key, (str, int, np.integer)):
            return self.get_vector(key)
        return np.array([self.get_vector(each) for each in key], np.float32).reshape(-1, self.vector_size)

    def get_vector(self, key: Key, norm: bool = False) -> Rows:
        """Return the vector of a word or row, shape (vector_size,); with `norm`, scaled to length 1.

        >>> wv = getfixture("wv")
        >>> wv.get_vector("cat", norm=True).round(2)
        array([0.95, 0.32], dtype=float32)
        """
        if isinstance(key, np.ndarray):
            vector: Rows = np.asarray(key, np.float32)
            if vector.shape != (self.vector_size,):
                raise UsageError(f"the vector has the shape {vector.shape} instead of ({self.vector_size},)")
        elif isinstance(key, str):
            found = self._find(key)
            if found is None:
                raise self._unknown(key)
            vector = found
        else:
            vector = self.vectors[self._row(key)]
        return _unit(vector) if norm else vector

    def get_index(self, key: str | int, default: int | None = None) -> int:
        """Return the row of a known word, else `default`; raise UnknownWord if that is None.

        >>> getfixture("wv").get_index("car")
        2
        """
        row = self._row_of(key) if isinstance(key, str) else self._row(key)
        row = default if row is None else row
        if row is None:
            raise self._unknown(str(key))
        return row

    def has_index_for(self, key: str) -> bool:
        """Return whether a word is in the vocabulary, and not merely composed of n-grams."""
        return self._row_of(key) is not None

    def get_vecattr(self, key: str | int, attr: str) -> int:
        """Return the `count` of a word in the text that the vectors were trained on."""
        if attr != "count" or self.counts is None:
            raise UsageError(f"these vectors have no {attr!r} of their words")
        return int(self.counts[self.get_index(key)])

    def get_mean_vector(
        self,
        keys: Sequence[Key],
        weights: Sequence[float] | npt.NDArray[Any] | None = None,
        pre_normalize: bool = True,
        post_normalize: bool = False,
        ignore_missing: bool = True,
    ) -> Rows:
        """Return the weighted mean of the vectors of `keys`, shape (vector_size,).

        `pre_normalize` first scales the vectors of words to length 1; `post_normalize` scales the mean. Unknown words
        are left out or, without `ignore_missing`, raise UnknownWord.

        >>> getfixture("wv").get_mean_vector(["cat", "dog"]).round(2)
        array([0.92, 0.38], dtype=float32)
        """
        weighting = np.ones(len(keys)) if weights is None else np.asarray(weights, dtype=np.float64)
        if not len(keys) or weighting.shape != (len(keys),):
            raise UsageError("a mean needs at least one word, and one weight for each")
        mean, total = np.zeros(self.vector_size), 0.0
        for key, weight in zip(keys, weighting, strict=True):
            if ignore_missing and isinstance(key, str) and key not in self:
                continue
            mean += weight * self.get_vector(key, norm=pre_normalize and not isinstance(key, np.ndarray))
            total += abs(weight)
        mean /= total or 1.0
        vector: Rows = mean.astype(np.float32)
        return _unit(vector) if post_normalize else vector

    def get_normed_vectors(self) -> Rows:
        """Return all vectors scaled to length 1, shape (words, vector_size); a zero vector stays zero."""
        lengths = self.norms[:, None]
        return np.divide(self.vectors, lengths, out=np.zeros_like(self.vectors), where=lengths > 0)

    def _find(self, word: str) -> Rows | None:
        row = self._row_of(word)
        if row is not None:
            known: Rows = self.vectors[row]
            return known
        return None if self.subwords is None else self.subwords.compose(word)

    def _row_of(self, word: str) -> int | None:
        row = self.key_to_index.get(word)
        return self.key_to_index.get(word.lower()) if row is None and self._lower_case_only else row

    def _row(self, row: int) -> int:
        if not isinstance(row, (int, np.integer)):
            raise UsageError(f"{row!r} is neither a word nor a row (an integer)")
        if not 0 <= row < len(self):
            raise UnknownWord(f"there is no row {row}: there are {len(self):,} words")
        return int(row)

    def _unknown(self, word: str) -> UnknownWord:
        from glovewire.common.cli.command import suggest

        first, fits = word[:1].lower(), range(len(word) - 2, len(word) + 3)
        like = [near for near in self.index_to_key[:_SUGGESTED] if near[:1].lower() == first and len(near) in fits]
        near = suggest(word.lower(), like)
        return UnknownWord(f"{word!r} is not among the {len(self):,} words of the vocabulary{near}")

    # ---- similarity

    def similarity(self, w1: Key, w2: Key) -> float:
        """Return the cosine of two words.

        >>> round(getfixture("wv").similarity("cat", "dog"), 3)
        0.99
        """
        return float(np.dot(self.get_vector(w1, norm=True), self.get_vector(w2, norm=True)))

    def distance(self, w1: Key, w2: Key) -> float:
        """Return 1 minus the cosine of two words."""
        return 1 - self.similarity(w1, w2)

    def n_similarity(self, ws1: Sequence[Key], ws2: Sequence[Key]) -> float:
        """Return the cosine of the mean vectors of two sets of words; unknown words are left out.

        >>> round(getfixture("wv").n_similarity(["cat", "dog"], ["car"]), 3)
        0.371
        """
        first, second = (self.get_mean_vector(words, pre_normalize=False, post_normalize=True) for words in (ws1, ws2))
        return float(np.dot(first, second))

    def distances(self, word_or_vector: Key, other_words: Sequence[str] = ()) -> Rows:
        """Return 1 minus the cosine to each of `other_words`, or to all words; shape (others,) or (words,)."""
        target = self.get_vector(word_or_vector, norm=True)
        if not other_words:
            return 1 - self._cosines(target, slice(None))
        return 1 - np.array([np.dot(self.get_vector(word, norm=True), target) for word in other_words], np.float32)

    def rank(self, key1: str, key2: str) -> int:
        """Return the place of `key2` among the words nearest to `key1`, from 1.

        >>> getfixture("wv").rank("cat", "car")
        2
        """
        return len(self.closer_than(key1, key2)) + 1

    def closer_than(self, key1: str, key2: str) -> list[str]:
        """Return the words that are nearer to `key1` than `key2` is."""
        distances = self.distances(key1)
        nearer = np.flatnonzero(distances < distances[self.get_index(key2)])
        itself = self._row_of(key1)
        return [self.index_to_key[row] for row in nearer if row != itself]

    def doesnt_match(self, words: Sequence[str]) -> str:
        """Return the word that is farthest from the mean of all `words`; unknown words are left out.

        >>> getfixture("wv").doesnt_match(["cat", "dog", "car"])
        'car'
        """
        known = [word for word in words if word in self]
        if not known:
            raise UnknownWord("none of these words is in the vocabulary")
        vectors = np.array([self.get_vector(word, norm=True) for word in known])
        return min(zip((vectors @ _unit(vectors.mean(axis=0))).tolist(), known, strict=True))[1]

    # ---- search

    def most_similar(
        self,
        positive: Weighted | Sequence[Weighted] | None = None,
        negative: Weighted | Sequence[Weighted] | None = None,
        topn: int | None = 10,
        restrict_vocab: int | None = None,
    ) -> Any:
        """Return the `topn` words nearest to the mean of `positive` minus `negative`, as (word, cosine).

        Each may be a word, a row, a vector, a pair of one of these and its weight (a float), or a list of such items.
        The given words are never returned. `restrict_vocab` searches only the first rows. With `topn=None`, returns an
        array of the cosines to all words.

        >>> wv = getfixture("wv")
        >>> [(word, round(cosine, 3)) for word, cosine in wv.most_similar("cat", topn=1)]
        [('dog', 0.99)]
        >>> wv.most_similar(positive=["car"], negative=["dog"], topn=1)[0][0]
        'cat'
        """
        if topn is not None and topn < 1:
            return []
        keys, weights = [], []
        for given, sign in ((positive, 1.0), (negative, -1.0)):
            for each in _listed(given):
                key, weight = each if isinstance(each, tuple) else (each, sign)
                keys.append(key)
                weights.append(weight)
        target = self.get_mean_vector(keys, weights, post_normalize=True, ignore_missing=False)
        searched = slice(0, restrict_vocab or None)
        cosines = self._cosines(target, searched)
        if topn is None:
            return cosines
        asked = {self._row_of(key) if isinstance(key, str) else key for key in keys if not isinstance(key, np.ndarray)}
        rows = best(cosines, [row for row in asked if row is not None and row < len(cosines)], topn)
        return [(self.index_to_key[row], float(cosines[row])) for row in rows]

    def similar_by_word(self, word: str, topn: int = 10, restrict_vocab: int | None = None) -> Neighbours:
        """Return the `topn` words nearest to a word, as (word, cosine)."""
        found: Neighbours = self.most_similar([word], topn=topn, restrict_vocab=restrict_vocab)
        return found

    similar_by_key = similar_by_word

    def similar_by_vector(
        self, vector: npt.NDArray[Any], topn: int = 10, restrict_vocab: int | None = None
    ) -> Neighbours:
        """Return the `topn` words nearest to a vector, shape (vector_size,), as (word, cosine).

        >>> wv = getfixture("wv")
        >>> wv.similar_by_vector(wv["cat"] + wv["dog"], topn=2)[0][0]
        'cat'
        """
        found: Neighbours = self.most_similar([np.asarray(vector)], topn=topn, restrict_vocab=restrict_vocab)
        return found

    def _cosines(self, target: Rows, searched: slice) -> Rows:
        """Return the cosine of a vector of length 1 to each row of `searched`."""
        cosines, norms = self.vectors[searched] @ target, self.norms[searched]
        np.divide(cosines, norms, out=cosines, where=norms > 0)
        return cosines

    # ---- evaluation

    def evaluate_word_pairs(
        self,
        pairs: str | PathLike[str],
        restrict_vocab: int = _RESTRICTED,
        case_insensitive: bool = True,
        dummy4unknown: bool = False,
    ) -> tuple[Any, Any, float]:
        """Return Pearson's and Spearman's correlation with the human scores of a file, and the percentage left out.

        `pairs` has lines `word word score`. Pairs with a word outside the first `restrict_vocab` words are left out or,
        with `dummy4unknown`, have the similarity 0. Each correlation has `statistic` and `pvalue`.

        >>> pearson, spearman, left_out = getfixture("wv").evaluate_word_pairs(getfixture("pairs"))
        >>> print(round(spearman.statistic, 2), left_out)
        1.0 25.0
        """
        from scipy.stats import pearsonr, spearmanr

        spell = str.upper if case_insensitive else str
        rows_of, known = self._rows_by_spelling(restrict_vocab, spell), read_pairs(Path(pairs))
        ours, human, unknown = [], [], 0
        for *words, score in known:
            found = [rows_of.get(spell(word), [])[:1] for word in words]
            if not all(found):
                unknown += 1
                if not dummy4unknown:
                    continue
            ours.append(self.similarity(*(self.vectors[row] for (row,) in found)) if all(found) else 0.0)
            human.append(score)
        if len(human) < 2:
            raise UsageError(
                f"fewer than two pairs of {pairs} have both words among the vectors, which is too few for a "
                "correlation: give more pairs or a larger restrict_vocab"
            )
        return pearsonr(human, ours), spearmanr(human, ours), 100 * unknown / len(known)

    def evaluate_word_analogies(
        self,
        analogies: str | PathLike[str],
        restrict_vocab: int = _RESTRICTED,
        case_insensitive: bool = True,
        dummy4unknown: bool = False,
    ) -> tuple[float, list[dict[str, Any]]]:
        """Return the accuracy (0 to 1) on a file of analogy questions in Google's format, and the results by section.

        Each section has its name as `section`, and the questions answered as `correct` and `incorrect`; the last one is
        `Total accuracy`. Questions with a word outside the first `restrict_vocab` words are left out or, with
        `dummy4unknown`, count as incorrect.

        >>> accuracy, sections = getfixture("wv").evaluate_word_analogies(getfixture("questions"))
        >>> accuracy, sections[0]["section"], len(sections[0]["incorrect"])
        (0.0, 'animals', 1)
        """
        spell = str.upper if case_insensitive else str
        rows_of, known = self._rows_by_spelling(restrict_vocab, spell), read_questions(Path(analogies))
        asked = [[tuple(map(spell, question)) for question in section.questions] for section in known]
        unit = self.get_normed_vectors()[:restrict_vocab]
        right = answered(chain.from_iterable(asked), lambda word: rows_of.get(word, []), unit)
        sections = [
            {
                "section": section.name,
                "correct": [question for question in questions if right.get(question)],
                "incorrect": [question for question in questions if not right.get(question, not dummy4unknown)],
            }
            for section, questions in zip(known, asked, strict=True)
        ]
        total = {kind: [each for section in sections for each in section[kind]] for kind in ("correct", "incorrect")}
        accuracy = len(total["correct"]) / max(1, len(total["correct"]) + len(total["incorrect"]))
        return accuracy, [*sections, {"section": "Total accuracy", **total}]

    def _rows_by_spelling(self, restrict_vocab: int, spell: Callable[[str], str]) -> dict[str, list[int]]:
        """Return the rows of the first `restrict_vocab` words, by the spelling of the word."""
        rows: dict[str, list[int]] = {}
        for row, word in enumerate(self.index_to_key[:restrict_vocab]):
            rows.setdefault(spell(word), []).append(row)
        return rows

    # ---- other programs

    def save(self, path: str | PathLike[str], format: str | None = None) -> Path:
        """Write the vectors to a new file or folder, the most frequent word first where counts are known; return it.

        Formats: `glove`, `word2vec`, `word2vec-bin`, `npz`, `safetensors`, `projector`, `fasttext-bin`, and `run`, a
        folder that keeps everything. The default follows the name: `.npz`, `.safetensors`, and `run` for a name without
        a suffix. A name that ends in .gz, .bz2, .xz or .zst is compressed. `load` reads all but `projector`, and gensim
        reads `word2vec`, `word2vec-bin` and `glove` (`no_header=True`), to the last bit.

        >>> wv, folder = getfixture("wv"), getfixture("tmp_path")
        >>> saved = wv.save(folder / "vectors.txt.gz", "word2vec")
        >>> (glovewire.load(saved).vectors == wv.vectors).all()
        np.True_
        """
        from .export import save

        path = Path(path)
        loaded = Vectors(tuple(self.index_to_key), self.vectors, self.facts, self.counts, self.subwords)
        save(loaded, path, format)
        return path

    def to_gensim(self) -> GensimVectors:
        """Return gensim's KeyedVectors with the same words, vectors and counts; MissingExtra without gensim.

        N-grams are left out: `save(path, "fasttext-bin")` writes them for `gensim.models.fasttext`.

        >>> getfixture("wv").to_gensim().most_similar("cat", topn=1)[0][0]
        'dog'
        """
        require_extra("gensim", "gensim", "to_gensim")
        from gensim.models import KeyedVectors as GensimVectors

        made = GensimVectors(self.vector_size)
        made.add_vectors(self.index_to_key, self.vectors)
        if self.counts is not None:
            for word, count in zip(self.index_to_key, self.counts.tolist(), strict=True):
                made.set_vecattr(word, "count", count)
        return made


def load(path: str | PathLike[str], dataset: str | PathLike[str] | None = None) -> KeyedVectors:
    """Read the vectors of a run, of a checkpoint, or of a file of this or another program.

    Files: GloVe's text, word2vec's text and binary, fastText's models, npz and safetensors, plain or compressed (gzip,
    bzip2, xz, zstd, or alone in a zip archive); their content decides, not their name. Words keep the order of the
    file; those of a run are sorted by descending frequency. An unfinished run gives its newest checkpoint. A checkpoint
    needs its `dataset` unless the run's `config.toml` names it. Raises ArtifactError and MalformedFile.

    >>> path = getfixture("tmp_path") / "three.txt"
    >>> path.write_text("cat 3 1\\ndog 2 1\\ncar 0 1\\n")
    24
    >>> wv = glovewire.load(path)
    >>> wv.most_similar("cat", topn=1)[0][0]
    'dog'
    """
    from .read import read_vectors

    place = Path(path)
    if not (place.exists() or url_of(place)):
        raise ArtifactError(f"{place} {nothing_there('vectors')}")
    return KeyedVectors.of(read_vectors(place, None if dataset is None else Path(dataset)))


def _unit(vector: Floats) -> Rows:
    """Return a vector scaled to length 1; zero stays zero."""
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length if length else vector, dtype=np.float32)


def _listed(given: Weighted | Sequence[Weighted] | None) -> list[Weighted]:
    """Return an argument of `most_similar` as a list; one word, row or vector, with or without a weight, or several."""
    if given is None:
        return []
    one = (
        isinstance(given, (str, int, np.integer))
        or (isinstance(given, np.ndarray) and given.ndim == 1)
        or (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (float, np.floating)))
    )
    return [given] if one else list(given)  # type: ignore[list-item, arg-type] # a sequence, as nothing else is left
