"""Format neighbours, scores and facts as aligned lines of text, without colour. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glovewire.common.model.neighbours import Neighbours

_UNITS = ("B", "kB", "MB", "GB", "TB")
_GAP = "   "
_LABELS = {
    "mean_norm": "mean norm of the vectors, as written",
    "mean_vector_norm": "mean norm at the end",
}
"""Labels of facts whose names need explanation. The norm at the end of training is of the vectors of one side, before
the sides are summed, the spectrum is flattened and n-grams are added."""


def quantity(value: object) -> str:
    """Return a number with thousands separators or four digits; any other value as text, unchanged."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {quantity(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(quantity(item) for item in value) or "-"
    return str(value)


def size(count: int) -> str:
    """Return a number of bytes in the unit that leaves one to three digits before the decimal point."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def columns(titled: Sequence[tuple[str, Neighbours]], width: int) -> Iterator[str]:
    """Yield the lines of lists of words and cosines under titles, as many lists side by side as fit into `width`."""
    blocks = [_column(title, near) for title, near in titled]
    while blocks:
        fits, used = 1, len(blocks[0][0])
        while fits < len(blocks) and used + len(_GAP) + len(blocks[fits][0]) <= width:
            used += len(_GAP) + len(blocks[fits][0])
            fits += 1
        shown, blocks = blocks[:fits], blocks[fits:]
        for row in range(max(len(block) for block in shown)):
            cells = [block[row] if row < len(block) else " " * len(block[0]) for block in shown]
            yield _GAP.join(cells).rstrip()
        if blocks:
            yield ""


def _column(title: str, near: Neighbours) -> list[str]:
    words = max([len(word) for word, _ in near], default=0)
    lines = [f"{word:<{words}}  {cosine:5.2f}" for word, cosine in near] or ["(no other word)"]
    width = max(len(title), *(len(line) for line in lines))
    return [f"{line:<{width}}" for line in (title, "-" * width, *lines)]


def scores(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result of `evaluate.score` as lines of a table: figures in percent, and the coverage of each set."""
    rows = []
    for name, found in result.get("similarity", {}).items():
        for each, with_unseen in _with_unseen(found):
            rows.append((Path(name).stem + with_unseen, each["spearman"], each["covered"], each["pairs"], "pairs"))
    for outcome, with_unseen in _with_unseen(result.get("analogies")):
        for kind in ("semantic", "syntactic", "total"):
            sections = [each for each in outcome["sections"].values() if kind in ("total", each["kind"])]
            covered, questions = (sum(each[field] for each in sections) for field in ("covered", "questions"))
            rows.append((f"analogies, {kind}{with_unseen}", outcome[kind], covered, questions, "questions"))
    width = max([len(name) for name, *_ in rows], default=0)
    yield f"{'':<{width}}  percent  covered"
    for name, figure, covered, total, what in rows:
        shown = "-  " if figure is None else f"{figure:.1f}"
        yield f"{name:<{width}}  {shown:>7}  {covered:>6,} of {total:,} {what}"


def _with_unseen(found: Mapping[str, Any] | None) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the result on a test set and, if known, the one with unseen words, each with a suffix for its name."""
    if found:
        yield found, ""
        if "unseen" in found:
            yield found["unseen"], ", with unseen words"


def facts(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result of `info.describe` as aligned lines: its items, then the recorded `facts`, then its files.

    Leaves out empty facts, and the last sample if there are facts, because they contain its figures.
    """
    left_out = {"facts", "files", "verified", "bytes"} | ({"last_sample"} if described.get("facts") else set())
    rows = [(name, value) for name, value in described.items() if name not in left_out]
    if "verified" in described:
        rows.append(("checksums", "verified" if described["verified"] else "not compared"))
    rows += sorted((name, value) for name, value in described.get("facts", {}).items() if value not in ({}, []))
    files = described.get("files", {})
    labels = [*(_label(name) for name, _ in rows), *(f"  {name}" for name in files), "size"]
    width = max(len(label) for label in labels)
    for name, value in rows:
        shown = size(value) if name.startswith("bytes_") else quantity(value)
        yield f"{_label(name):<{width}}  {shown}"
    if files:
        yield f"{'size':<{width}}  {size(described['bytes'])}"
        for name, count in files.items():
            yield f"{'  ' + name:<{width}}  {size(count)}"


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))
