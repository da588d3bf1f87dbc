"""Keep before-images of rows while the strip that changed them may have to be trained again. No I/O.

A strip changes several partitions, on one shard or more, one after the other. If its worker is lost in between, the
worker that trains the strip again needs all of them unchanged, though later strips may have changed them since. A
before-image holds only the rows that its strip has changed, so those of all later strips are needed as well: images are
dropped in the order of the rounds, once all earlier ones are complete in every table.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from glovewire.common.array_types import Array, Halves, Indices
from glovewire.common.errors import NotReady
from glovewire.common.model import bfloat16_kernels
from glovewire.common.protocol.messages import Pull, Push

from ..table import kernels
from ..table.table import row_numbers


class BeforeImage(NamedTuple):
    """The values that rows [first, last), or those in `rows`, had before a push.

    They are float32; or bfloat16, with the lower halves of the float32 in `low` until the visit is complete.
    """

    first: int
    last: int
    rows: Indices | None
    values: Array
    low: Halves | None = None

    def of(self, dtype: np.dtype[Any]) -> Array:
        """Return the values in the dtype of the rows that they replace: float32 only before the visit is complete."""
        if dtype == self.values.dtype:
            return self.values
        assert self.low is not None, "a complete visit of bfloat16 rows is only pulled, as bfloat16"
        return bfloat16_kernels.join(self.values, self.low)


class UndoLog:
    """The before-images that are kept, by round and partition, in the order of the pushes."""

    def __init__(self) -> None:
        self._kept: defaultdict[int, dict[int, list[BeforeImage]]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, partition: int, push: Push, values: Array, low: Halves | None = None) -> None:
        """Keep the values that the rows of a push had before it, but of no row twice in a round.

        `values` and `low` are those of a BeforeImage. A lost worker may have pushed some of the rows, in other pieces:
        the values from before its pushes are kept.
        """
        images = self._kept[push.version].setdefault(partition, [])
        earlier = [_numbers(image) for image in self.overlapping(partition, push)]
        if not earlier:
            images.append(BeforeImage(push.first, push.last, push.rows, values, low))
            return
        numbers = _numbers(push)
        fresh = ~np.isin(numbers, np.concatenate(earlier))
        if fresh.any():
            low = None if low is None else low[fresh]
            images.append(BeforeImage(push.first, push.last, numbers[fresh], values[fresh], low))

    def drop_low(self, partition: int, round: int) -> None:
        """Drop the lower halves of a round that has completed its visit: from now on only bfloat16 is pulled."""
        images = self._kept[round][partition]
        images[:] = [BeforeImage(image.first, image.last, image.rows, image.values) for image in images]

    def overlapping(self, partition: int, push: Push) -> list[BeforeImage]:
        """Return the images of rows in the range of a push, from before its round."""
        images = self._kept.get(push.version, {}).get(partition, ())
        return [image for image in images if image.first < push.last and push.first < image.last]

    def drop_before(self, round: int) -> None:
        """Drop the images of all rounds before `round`."""
        for early in [kept for kept in self._kept if kept < round]:
            del self._kept[early]

    def restore(self, pull: Pull | Push, partition: int, rounds: Iterable[int], values: Array) -> Array:
        """Undo in `values`, the current rows of a request, what was pushed in `rounds`, ascending; return `values`.

        Raises NotReady at the first round, other than the last, whose images are not kept.
        """
        kept: list[list[BeforeImage] | None] = []
        for round in rounds:
            if kept and kept[-1] is None:
                raise NotReady(f"rows {pull.first}..{pull.last} are past version {pull.version}")
            kept.append(self._kept.get(round, {}).get(partition))
        for images in reversed(kept):
            for image in images or ():
                _overlay(pull, image, values)
        return values


def _overlay(pull: Pull | Push, image: BeforeImage, values: Array) -> None:
    """Replace the rows of `values` (those of the pull) that are in the image."""
    before = image.of(values.dtype)
    if pull.rows is None and image.rows is None:
        low, high = max(pull.first, image.first), min(pull.last, image.last)
        if low < high:
            values[low - pull.first : high - pull.first] = before[low - image.first : high - image.first]
        return
    kernels.replace_common(values, _numbers(pull), before, _numbers(image))


def _numbers(rows: Pull | Push | BeforeImage) -> Indices:
    return row_numbers(rows.first, rows.last) if rows.rows is None else kernels.aligned(rows.rows)
