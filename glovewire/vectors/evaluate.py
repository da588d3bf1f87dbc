"""Score vectors: rank correlation with human similarity scores, and accuracy on analogies.

All figures are percent, as the literature quotes them: a `spearman` of 58.4 is a rank correlation of 0.584. Pairs and
questions with a word outside the vocabulary are left out and counted; a word is looked up as it is written, then in
lower case.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    With `subwords`, each of these has `unseen`: the same result with the sets' unseen words among the vocabulary, by
    the vectors that their n-grams compose. Raises MalformedFile for a file that is not a test set.
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
    """Return `unit` with those of `words` that it can only compose as known words."""
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


def answer_analogies(questions: npt.NDArray[np.intp], unit: Rows) -> npt.NDArray[np.intp]:
    """Return the row with the largest cosine to b - a + c for each question, rows (a, b, c) of shape (questions, 3).

    Few distinct words occur in all questions: the cosines of each to the vocabulary are computed once, and a question
    adds three rows of cosines. This takes a tenth of the arithmetic of one product per question. Memory is bounded.
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
            inside = (questions[batch] >= start) & (questions[batch] < start + sums.shape[1])
            question, which = np.nonzero(inside)
            sums[question, questions[batch][question, which] - start] = -np.inf  # its own words are no answer
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
