"""How good vectors are: agreement with human similarity scores, and analogies answered.

All figures are percent, as the literature quotes them: a `spearman` of 58.4 is a rank correlation of 0.584. Pairs and
questions with a word outside the vocabulary are left out and counted, never guessed; a word is looked up as it is
written, then in lower case. Reads test sets; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .neighbours import known_row, unit_rows
from .testsets import KINDS, Pair, Section, read_pairs, read_questions

_QUESTIONS_AT_ONCE = 128
_WORDS_AT_ONCE = 2048


def score(
    words: Sequence[str],
    vectors: npt.NDArray[np.floating[Any]],
    similarity_files: Sequence[Path] = (),
    analogy_file: Path | None = None,
    *,
    centre: bool = False,
) -> dict[str, Any]:
    """Everything that was asked for, as plain values.

    `vectors`: shape (words, dim), row i for `words[i]`; `centre` subtracts their mean. Returns `similarity`
    {file as given: see the function of this name} and `analogies` (see there), each if it was asked for. Raises
    MalformedFile for a test set that is none.
    """
    pairs = {str(path): read_pairs(path) for path in similarity_files}
    sections = read_questions(analogy_file) if analogy_file else None
    index, unit = {word: row for row, word in enumerate(words)}, unit_rows(vectors, centre=centre)
    result: dict[str, Any] = {}
    if pairs:
        result["similarity"] = {name: similarity(each, index, unit) for name, each in pairs.items()}
    if sections is not None:
        result["analogies"] = analogies(sections, index, unit)
    return result


def similarity(pairs: Sequence[Pair], index: Mapping[str, int], unit: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Spearman's rank correlation (percent) between cosines and human scores.

    Returns `spearman` (None where fewer than two pairs, or constant values, leave it undefined), `pairs` in the set
    and `covered` pairs with both words in the vocabulary.
    """
    known = [(rows, human) for *pair, human in pairs if (rows := _known_rows(pair, index))]
    first, second = np.array([rows for rows, _ in known], dtype=np.intp).reshape(-1, 2).T
    cosines = np.einsum("ij,ij->i", unit[first], unit[second])
    return {
        "spearman": _spearman(cosines, np.array([human for _, human in known])),
        "pairs": len(pairs),
        "covered": len(known),
    }


def analogies(sections: Sequence[Section], index: Mapping[str, int], unit: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Percent of the covered questions whose fourth word 3CosAdd puts first, over the whole vocabulary.

    Returns `semantic`, `syntactic` and `total` (None without a covered question), `covered`, `questions`, and the
    same by section under `sections`. The three words of a question are never an answer.
    """
    known = [[found for q in section.questions if (found := _known_rows(q, index))] for section in sections]
    rows = np.array([found for each in known for found in each], dtype=np.intp).reshape(-1, 4)
    right = answer(rows[:, :3], unit) == rows[:, 3]
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


def _known_rows(words: Iterable[str], index: Mapping[str, int]) -> list[int]:
    """The rows of all `words`, or none if one of them is not known."""
    rows = [known_row(word, index) for word in words]
    known = [row for row in rows if row is not None]
    return known if len(known) == len(rows) else []


def answer(questions: npt.NDArray[np.intp], unit: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """The row with the largest cosine to b - a + c, for rows (a, b, c) of shape (questions, 3).

    The questions ask about few words, so each of these meets the vocabulary once, and a question adds three rows of
    cosines: a tenth of the arithmetic of multiplying every question's sum with every word. Memory stays bounded.
    """
    asked, places = np.unique(questions, return_inverse=True)
    a, b, c = places.reshape(-1, 3).T
    best = np.full(len(questions), -np.inf, dtype=np.float32)
    answers = np.zeros(len(questions), dtype=np.intp)
    for start in range(0, len(unit) if len(questions) else 0, _WORDS_AT_ONCE):
        cosines = unit[asked] @ unit[start : start + _WORDS_AT_ONCE].T
        for first in range(0, len(questions), _QUESTIONS_AT_ONCE):
            batch = slice(first, first + _QUESTIONS_AT_ONCE)
            sums = cosines[b[batch]]
            sums -= cosines[a[batch]]
            sums += cosines[c[batch]]
            _exclude(sums, questions[batch] - start)
            _keep_better(best[batch], answers[batch], sums, start)
    return answers


def _exclude(sums: npt.NDArray[np.float32], columns: npt.NDArray[np.intp]) -> None:
    rows, which = np.nonzero((columns >= 0) & (columns < sums.shape[1]))
    sums[rows, columns[rows, which]] = -np.inf


def _keep_better(
    best: npt.NDArray[np.float32], answers: npt.NDArray[np.intp], sums: npt.NDArray[np.float32], start: int
) -> None:
    winners = sums.argmax(axis=1)
    values = sums[np.arange(len(sums)), winners]
    better = values > best
    best[better] = values[better]
    answers[better] = winners[better] + start


def _percent(hits: npt.NDArray[np.bool_]) -> float | None:
    return round(100 * float(hits.mean()), 2) if len(hits) else None


def _spearman(ours: npt.NDArray[np.float32], human: npt.NDArray[np.float64]) -> float | None:
    from scipy.stats import spearmanr

    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(human) == 0:
        return None
    return round(100 * float(spearmanr(ours, human).statistic), 2)
