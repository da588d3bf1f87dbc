"""Score vectors: rank correlation with human similarity scores, and accuracy on analogies.

All figures are percent, as the literature quotes them: a `spearman` of 58.4 is a rank correlation of 0.584. Pairs and
questions with a word outside the vocabulary are left out and counted; a word is looked up as it is written, then in
lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Floats, Rows
from glovewire.common.errors import UsageError
from glovewire.common.model.neighbours import UnitVectors
from glovewire.common.model.subwords import Subwords

from .testsets import KINDS, Pair, Section, read_pairs, read_questions

if TYPE_CHECKING:
    from .keyed_vectors import KeyedVectors

_QUESTIONS_AT_ONCE = 128
_WORDS_AT_ONCE = 2048


def score(
    words: Sequence[str],
    vectors: Floats,
    similarity_files: Sequence[Path] = (),
    analogy_file: Path | None = None,
    *,
    centre: bool = False,
    subwords: Subwords | None = None,
) -> dict[str, Any]:
    """Return the scores on the given test sets as plain values.

    `vectors` has shape (words, dim), row i for `words[i]`; `centre` subtracts their mean. The result has the keys
    `similarity` ({file: result of `similarity()`}) and `analogies` (result of `analogies()`) if such files were given.
    With `subwords`, each result also has `unseen`: the result when the sets' unseen words join the vocabulary, with
    vectors composed of their n-grams. Raises MalformedFile for a file that is not a test set.
    """
    pairs = {str(path): read_pairs(path) for path in similarity_files}
    sections = read_questions(analogy_file) if analogy_file else None
    unit = UnitVectors.of(words, vectors, subwords, centre=centre)
    result = _score(pairs, sections, unit)
    if subwords is not None:
        texts = [[word for *pair, _ in each for word in pair] for each in pairs.values()]
        texts += [[word for question in section.questions for word in question] for section in sections or ()]
        more = _score(pairs, sections, _with_unseen(unit, chain.from_iterable(texts)))
        for name, each in result.get("similarity", {}).items():
            each["unseen"] = more["similarity"][name]
        if sections is not None:
            result["analogies"]["unseen"] = more["analogies"]
    return result


def _score(
    pairs: Mapping[str, Sequence[Pair]], sections: Sequence[Section] | None, unit: UnitVectors
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if pairs:
        result["similarity"] = {name: similarity(each, unit) for name, each in pairs.items()}
    if sections is not None:
        result["analogies"] = analogies(sections, unit)
    return result


def _with_unseen(unit: UnitVectors, words: Iterable[str]) -> UnitVectors:
    """Return `unit` extended by those of `words` that it does not know but can compose."""
    found = {word: unit.look_up(word) for word in dict.fromkeys(words)}
    rows = {word: each.vector for word, each in found.items() if each is not None and each.row is None}
    return UnitVectors([*unit.words, *rows], np.vstack([unit.rows, *rows.values()]))


def similarity(pairs: Sequence[Pair], unit: UnitVectors) -> dict[str, Any]:
    """Return Spearman's rank correlation (percent) between cosines and human scores.

    The result has `spearman` (None where fewer than two pairs, or constant values, leave it undefined), `pairs` in the
    set and `covered` pairs with both words in the vocabulary.
    """
    known = [(rows, human) for *pair, human in pairs if (rows := _find_all(pair, unit))]
    first, second = np.array([rows for rows, _ in known], dtype=np.intp).reshape(-1, 2).T
    cosines = np.einsum("ij,ij->i", unit.rows[first], unit.rows[second])
    return {
        "spearman": _spearman(cosines, np.array([human for _, human in known])),
        "pairs": len(pairs),
        "covered": len(known),
    }


def analogies(sections: Sequence[Section], unit: UnitVectors) -> dict[str, Any]:
    """Return the percentage of covered questions whose fourth word 3CosAdd ranks first in the whole vocabulary.

    The result has `semantic`, `syntactic` and `total` (None without a covered question), `covered`, `questions`, and
    `sections`: accuracy, covered and questions by section. The three words of a question are never an answer.
    """
    known = [[found for q in section.questions if (found := _find_all(q, unit))] for section in sections]
    rows = np.array([found for each in known for found in each], dtype=np.intp).reshape(-1, 4)
    right = answer_analogies(rows[:, :3], unit.rows) == rows[:, 3]
    by_section = np.split(right, np.cumsum([len(each) for each in known])[:-1])
    kinds = np.array([section.kind for section, each in zip(sections, known, strict=True) for _ in each])
    return {
        **{kind: _percent(right[kinds == kind]) for kind in KINDS},
        "total": _percent(right),
        "covered": len(right),
        "questions": sum(len(section.questions) for section in sections),
        "sections": {
            section.name: {
                "kind": section.kind,
                "accuracy": _percent(hits),
                "covered": len(hits),
                "questions": len(section.questions),
            }
            for section, hits in zip(sections, by_section, strict=True)
        },
    }


def _find_all(words: Iterable[str], unit: UnitVectors) -> list[int]:
    """Return the rows of all `words`; an empty list if any of them is not in the vocabulary."""
    rows = [unit.find(word) for word in words]
    known = [row for row in rows if row is not None]
    return known if len(known) == len(rows) else []


def answer_analogies(
    questions: npt.NDArray[np.intp], unit: Rows, without: npt.NDArray[np.intp] | None = None
) -> npt.NDArray[np.intp]:
    """Return the row with the largest cosine to b - a + c for each question, rows (a, b, c) of shape (questions, 3).

    The rows `without`, shape (questions, n), are never the answer to their question; default: its own three words.
    Questions share few distinct words, so the cosines of each word to the vocabulary are computed once, and a question
    adds three rows of cosines. This takes a tenth of the arithmetic of one product per question. Memory is bounded.
    """
    without = questions if without is None else without
    distinct, places = np.unique(questions, return_inverse=True)
    a, b, c = places.reshape(-1, 3).T
    best = np.full(len(questions), -np.inf, dtype=np.float32)
    answers = np.zeros(len(questions), dtype=np.intp)
    for start in range(0, len(unit) if len(questions) else 0, _WORDS_AT_ONCE):
        cosines = unit[distinct] @ unit[start : start + _WORDS_AT_ONCE].T
        for first in range(0, len(questions), _QUESTIONS_AT_ONCE):
            batch = slice(first, first + _QUESTIONS_AT_ONCE)
            sums = cosines[b[batch]]
            sums -= cosines[a[batch]]
            sums += cosines[c[batch]]
            inside = (without[batch] >= start) & (without[batch] < start + sums.shape[1])
            question, which = np.nonzero(inside)
            sums[question, without[batch][question, which] - start] = -np.inf
            winners = sums.argmax(axis=1)
            values = sums[np.arange(len(sums)), winners]
            better = values > best[batch]
            best[batch][better] = values[better]
            answers[batch][better] = winners[better] + start
    return answers


def _percent(hits: npt.NDArray[np.bool_]) -> float | None:
    return round(100 * float(hits.mean()), 2) if len(hits) else None


def _spearman(ours: Rows, human: npt.NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(human) == 0:
        return None
    return round(100 * float(spearmanr(ours, human).statistic), 2)


# ---- as gensim scores


def word_pairs(
    wv: KeyedVectors, path: Path, restrict_vocab: int, case_insensitive: bool, dummy4unknown: bool
) -> tuple[Any, Any, float]:
    """Return Pearson's and Spearman's correlation and the percentage of unknown pairs: see KeyedVectors."""
    from scipy.stats import pearsonr, spearmanr

    rows = _rows_by_name(wv, restrict_vocab, case_insensitive)
    pairs = read_pairs(path)
    ours, human, unknown = [], [], 0
    for *words, score in pairs:
        found = [rows.get(_name(word, case_insensitive)) for word in words]
        if None in found:
            unknown += 1
            if not dummy4unknown:
                continue
        ours.append(0.0 if None in found else wv.similarity(*(wv.vectors[row] for row in found)))
        human.append(score)
    if len(human) < 2:
        raise UsageError(
            f"fewer than two pairs of {path} have both words among the vectors, which is too few for a correlation: "
            "give more pairs or a larger restrict_vocab"
        )
    return pearsonr(human, ours), spearmanr(human, ours), 100 * unknown / len(pairs)


def word_analogies(
    wv: KeyedVectors, path: Path, restrict_vocab: int, case_insensitive: bool, dummy4unknown: bool
) -> tuple[float, list[dict[str, Any]]]:
    """Return the accuracy on analogy questions, and the questions by section: see KeyedVectors."""
    rows = _rows_by_name(wv, restrict_vocab, case_insensitive)
    names = [_name(word, case_insensitive) for word in wv.index_to_key[:restrict_vocab]]
    same = np.array([rows[name] for name in names], dtype=np.intp)  # the first row that spells the same word
    sections = read_questions(path)
    questions = [tuple(_name(w, case_insensitive) for w in q) for each in sections for q in each.questions]
    known = [place for place, question in enumerate(questions) if all(word in rows for word in question)]
    asked = np.array([[rows[word] for word in questions[place]] for place in known], dtype=np.intp).reshape(-1, 4)
    without = _spellings(same, asked[:, :3])
    answers = answer_analogies(asked[:, :3], wv.get_normed_vectors()[: len(names)], without)
    right = np.zeros(len(questions), dtype=np.bool_)
    right[known] = same[answers] == asked[:, 3]
    counted = np.full(len(questions), dummy4unknown)
    counted[known] = True
    found, first = [], 0
    for section in sections:
        places = range(first, first := first + len(section.questions))
        found.append(
            {
                "section": section.name,
                "correct": [questions[place] for place in places if right[place]],
                "incorrect": [questions[place] for place in places if counted[place] and not right[place]],
            }
        )
    total = {kind: [each for section in found for each in section[kind]] for kind in ("correct", "incorrect")}
    accuracy = len(total["correct"]) / max(1, len(total["correct"]) + len(total["incorrect"]))
    return accuracy, [*found, {"section": "Total accuracy", **total}]


def _name(word: str, case_insensitive: bool) -> str:
    return word.upper() if case_insensitive else word


def _rows_by_name(wv: KeyedVectors, restrict_vocab: int, case_insensitive: bool) -> dict[str, int]:
    """Return the first row of each word, in capitals if case is ignored, among the first `restrict_vocab`."""
    words = wv.index_to_key[:restrict_vocab]
    return {_name(words[row], case_insensitive): row for row in reversed(range(len(words)))}


def _spellings(same: npt.NDArray[np.intp], asked: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the rows of all spellings of the rows `asked`, shape (questions, n); short lists repeat a row."""
    others = np.flatnonzero(same != np.arange(len(same)))
    columns = [asked]
    while len(others):  # each pass adds one more spelling of every word that has one
        _, firsts = np.unique(same[others], return_index=True)
        more = np.arange(len(same))
        more[same[others[firsts]]] = others[firsts]
        columns.append(more[asked])
        others = np.delete(others, firsts)
    return np.concatenate(columns, axis=1)
