"""Choose the figures that describe a run: those of word vectors, or those of a dense model. No I/O.

The terminal, the dashboard, plain lines and plots take their figures from here, so that they agree on names and units.
"""

import re
from dataclasses import dataclass

from glovewire.common.text import shown_loss

from . import formatting
from .history import RunHistory

MAX_SCORES = 4


@dataclass(frozen=True)
class Figure:
    """One figure: its label, its value as text, and a note that explains or compares it.

    `key` names it in lines of key=value pairs.
    """

    key: str
    label: str
    value: str
    note: str = ""


def loss_figure(history: RunHistory) -> Figure:
    """Return the loss; with the bias-only loss as its note where there is one."""
    value = "–" if history.loss is None else shown_loss(history.loss.mean_loss)
    if history.is_dense:
        return Figure("loss", "training loss", value)
    if history.loss is None:
        return Figure("loss", "loss", value)
    return Figure("loss", "loss", value, f"bias-only loss {shown_loss(history.loss.mean_bias_only_loss)}")


def norm_figure(history: RunHistory) -> Figure:
    """Return the mean norm of the vectors, or of a dense model's gradients."""
    value = "–" if history.loss is None else f"{history.loss.norm:.3g}"
    if history.is_dense:
        return Figure("gradient_norm", "gradient norm", value, "over all tensors, before clipping")
    return Figure("norm", "mean vector norm", value, "grows as vectors learn")


def rate_figures(history: RunHistory) -> list[Figure]:
    """Return the speed; for a finished run, its mean speed."""
    mean = "mean of the run" if history.finished else ""
    rate = formatting.amount(history.entries_per_second)
    figure = Figure(f"{history.unit}_per_second", f"{history.unit}/s", rate, mean)
    if not history.is_dense:
        return [figure]
    return [
        Figure("updates_per_second", "steps/s", formatting.amount(history.updates_per_second), mean),
        figure,
    ]


def score_figures(history: RunHistory) -> list[Figure]:
    """Return the newest score of each test, at most MAX_SCORES; the note has the best one, if it is another.

    The best is the highest, or the lowest of what is called a loss, an error or a perplexity.
    """
    found = []
    lower = re.compile("loss|error|perplexity", re.IGNORECASE)
    for test, scores in list(history.quality.items())[:MAX_SCORES]:
        best = (min if lower.search(test) else max)(sample.score for sample in scores)
        is_best = scores[-1].score == best
        key = re.sub(r"\W", "_", test)  # a name from the network, which must not look like another key
        found.append(Figure(f"score_{key}", test, f"{scores[-1].score:.1f}", "" if is_best else f"best {best:.1f}"))
    return found
