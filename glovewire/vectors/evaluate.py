"""Score vectors: rank correlation with human similarity scores, and accuracy on analogies.

All figures are percent, as the literature quotes them: a `spearman` of 58.4 is a rank correlation of 0.584. Pairs and
questions with a word outside the vocabulary are left out and counted; a word is looked up as it is written, then in
lower case.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Floats, Rows
from glovewire.common.model.neighbours import UnitVectors
from glovewire.common.model.subwords import Subwords

from .testsets import KINDS, Pair, Section, read_pairs, read_questions

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
        asked = [pair for each in pairs.values() for *pair, _ in each]
        asked += [[*question] for section in sections or () for question in section.questions]
        more = _score(pairs, sections, _with_unseen(unit, chain.from_iterable(asked)))
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
    found = [([unit.find(word) for word in pair], human) for *pair, human in pairs]
    known = [(rows, human) for rows, human in found if None not in rows]
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
    asked = [question for section in sections for question in section.questions]
    right = answered(asked, lambda word: [] if (row := unit.find(word)) is None else [row], unit.rows)
    hits = [(section, [right[each] for each in section.questions if each in right]) for section in sections]
    every = [hit for _, each in hits for hit in each]
    kinds = {kind: [hit for section, each in hits if section.kind == kind for hit in each] for kind in KINDS}
    return {
        **{kind: _percent(each) for kind, each in kinds.items()},
        "total": _percent(every),
        "covered": len(every),
        "questions": len(asked),
        "sections": {
            section.name: {
                "kind": section.kind,
                "accuracy": _percent(each),
                "covered": len(each),
                "questions": len(section.questions),
            }
            for section, each in hits
        },
    }


def answered(
    questions: Iterable[Sequence[str]], rows_of: Callable[[str], list[int]], unit: Rows
) -> dict[Sequence[str], bool]:
    """Return whether 3CosAdd answers each question, without those with a word that has no row.

    `rows_of` returns all rows that spell a word: its vector is that of the first, and none of them is an answer.
    """
    found = {question: [rows_of(word) for word in question] for question in questions}
    known = {question: rows for question, rows in found.items() if all(rows)}
    most = max((len(rows) for words in known.values() for rows in words), default=1)
    firsts = np.array([[rows[0] for rows in words] for words in known.values()], dtype=np.intp).reshape(-1, 4)
    without = [[row for rows in words[:3] for row in (rows * most)[:most]] for words in known.values()]
    answers = answer_analogies(firsts[:, :3], unit, np.array(without, dtype=np.intp).reshape(-1, 3 * most))
    return {question: row in words[3] for (question, words), row in zip(known.items(), answers.tolist(), strict=True)}


def answer_analogies(
    questions: npt.NDArray[np.intp], unit: Rows, without: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Return the row with the largest cosine to b - a + c for each question, rows (a, b, c) of shape (questions, 3).

    The rows `without`, shape (questions, n), are never the answer to their question. Questions share few distinct
    words, so the cosines of each word to the vocabulary are computed once, and a question adds three rows of cosines.
    This takes a tenth of the arithmetic of one product per question. Memory is bounded.
    """
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


def _percent(hits: Sequence[bool]) -> float | None:
    return round(100 * (sum(hits) / len(hits)), 2) if hits else None


def _spearman(ours: Rows, human: npt.NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(human) == 0:
        return None
    return round(100 * float(spearmanr(ours, human).statistic), 2)
