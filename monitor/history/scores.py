"""Choose the scores that the terminal, the dashboard and plain lines show of a run. No I/O."""

import re
from typing import NamedTuple

from .history import RunHistory

MAX_SCORES = 4
_LOWER_IS_BETTER = re.compile("loss|error|perplexity", re.IGNORECASE)


class Score(NamedTuple):
    """Newest score of a test, as text; `best` is the best one if it differs; `key` is for key=value pairs."""

    test: str
    value: str
    best: str
    key: str


def newest_scores(history: RunHistory) -> list[Score]:
    """Return the newest score of each test, at most MAX_SCORES.

    The best score is the highest or, for a test named as a loss, an error or a perplexity, the lowest.
    """
    found = []
    for test, scores in list(history.quality.items())[:MAX_SCORES]:
        best = (min if _LOWER_IS_BETTER.search(test) else max)(sample.score for sample in scores)
        shown = "" if scores[-1].score == best else f"best {best:.1f}"
        key = re.sub(r"\W", "_", test)  # a name from the network, which must not look like another key
        found.append(Score(test, f"{scores[-1].score:.1f}", shown, f"score_{key}"))
    return found
