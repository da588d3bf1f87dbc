"""Keep the entries of the strips that a worker trains on this machine's disk, one file per strip, within a size limit.

Once the cache is full, the most recently trained strips are removed: a sweep trains each strip once, so they are the
last to be needed again.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import log
from ..array_types import Entries
from ..errors import ArtifactError
from .artifacts import PARTIAL, output_errors, scratch_path
from .cache import remove_oldest, require_free, warn_too_small
from .dataset import ENTRY, Dataset

SUFFIX = ".entries"
LEFT_OVER_S = 3600.0
"""Age in seconds from which an unfinished file counts as left behind by a process that ended."""

Block = tuple[int, int]

logger = logging.getLogger(__name__)


class StripFiles:
    """The strips of `dataset`, opened in blocks in a folder of a cache that may take `cache_bytes` bytes.

    A file contains the blocks of `layout.strip`, one after the other. Other processes may use the same files: a removed
    file stays readable in the processes that have loaded it.
    """

    def __init__(self, dataset: Dataset, cache_bytes: int) -> None:
        assert dataset.loaded is not None
        self.dataset = dataset
        self._cache_bytes, self._is_too_small = cache_bytes, False
        self._blocks = dataset.loaded
        self._blocks.clear()
        self._held: set[int] = set()
        self._written: dict[int, set[tuple[int, int]]] = {}
        """For each incomplete strip, the offset and length of the pieces written so far."""
        self._brought = 0
        self._kept = [strip for strip in range(dataset.layout.partitions) if self._path(strip).exists()]
        """Strips on the disk, least recently used first."""
        for path in dataset.path.glob(f".*{PARTIAL}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > LEFT_OVER_S:
                    path.unlink()

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """Return for each partition whether its strip is on the disk; shape (partitions,)."""
        found = np.zeros(self.dataset.layout.partitions, np.bool_)
        found[self._kept] = True
        return found

    def places(self, strip: int) -> Iterator[tuple[Block, int, int]]:
        """Yield each block of a strip with its first byte in the strip's file and the byte after its last."""
        blocks = self.dataset.layout.strip(strip)
        spans = [self.dataset.block_range(*block) for block in blocks]
        ends = np.cumsum([0, *(last - first for first, last in spans)]) * ENTRY.itemsize
        for block, (start, end) in zip(blocks, pairwise(ends.tolist()), strict=True):
            yield block, start, end

    def hold(self, strip: int) -> bool:
        """Load a strip, which stays until `release`; if it must be written first, make room for it and return False."""
        self._held.add(strip)
        needed = max(end for _, _, end in self.places(strip))
        if strip in self._kept or not needed:
            self._kept = [each for each in self._kept if each != strip]
            if self._load(strip, self._path(strip)):
                return True
            logger.warning(log.line("damaged", file=self._path(strip), then="it is downloaded again"))
        self._make_room(needed)
        return False

    def release(self, strip: int) -> None:
        """Release a strip; it stays loaded, and on the disk, while there is room."""
        self._held.discard(strip)
        if self._is_too_small:
            self._make_room(0)

    def release_all(self) -> None:
        """Release all strips."""
        self._held.clear()
        self._make_room(0)

    def is_written(self, strip: int, offset: int, nbytes: int) -> bool:
        """Return whether this piece of an incomplete strip has been written."""
        return (offset, nbytes) in self._written.get(strip, ())

    def write(self, strip: int, offset: int, piece: bytes) -> None:
        """Write a piece of a strip at `offset`; OutputError if the disk is full."""
        scratch = scratch_path(self._path(strip))
        with output_errors(self.dataset.path, "cache"), scratch.open("r+b" if scratch.exists() else "wb") as stream:
            stream.seek(offset)
            stream.write(piece)
        self._written.setdefault(strip, set()).add((offset, len(piece)))

    def keep(self, strip: int) -> None:
        """Load a strip that is written completely; ArtifactError if it does not match the dataset's checksums."""
        path = self._path(strip)
        scratch = scratch_path(path)
        self._written.pop(strip, None)
        if not self._load(strip, scratch):
            scratch.unlink(missing_ok=True)
            raise ArtifactError(f"the entries of strip {strip} are damaged at their source or were damaged in transit")
        with output_errors(path, "cache"):
            scratch.rename(path)
        self._brought += (nbytes := path.stat().st_size)
        logger.info(log.line("downloaded", kind="strip", strip=strip, bytes=nbytes))

    def close(self) -> None:
        """Release all strips; remove incomplete ones and those that exceed the cache; log what is kept."""
        self.release_all()
        self._blocks.clear()
        for strip in self._written:
            scratch_path(self._path(strip)).unlink(missing_ok=True)
        kept = sum(end for strip in self._kept for _, _, end in [*self.places(strip)][-1:])
        logger.info(log.line("entries", bytes_downloaded=self._brought, strips_kept=len(self._kept), bytes_kept=kept))

    def _path(self, strip: int) -> Path:
        return self.dataset.path / f"{strip}{SUFFIX}"

    def _load(self, strip: int, path: Path) -> bool:
        """Load the strip in a file, unless it is loaded; return False if the file is missing or damaged."""
        places = list(self.places(strip))
        if not all(block in self._blocks for block, _, _ in places):
            entries = _mapped(path)
            found = {block: entries[start // ENTRY.itemsize : end // ENTRY.itemsize] for block, start, end in places}
            if not all(self.dataset.fits(*block, found[block]) for block in found):
                return False
            self._blocks.update(found)
        self._kept.append(strip)
        return True

    def _make_room(self, needed: int) -> None:
        """Remove what is not in use until `needed` more bytes fit; OutputError if the disk is full.

        Strips that are held stay, even if they and the `needed` bytes exceed the limit of the cache.
        """
        cache = self.dataset.path.parent
        over = remove_oldest(cache, self._cache_bytes - needed) + needed - self._cache_bytes
        if over > 0 and not self._is_too_small:
            self._is_too_small = True
            warn_too_small(cache, over + self._cache_bytes, self._cache_bytes, "strips are downloaded again")
        for strip in [strip for strip in self._kept[::-1] if strip not in self._held]:
            if over > 0:
                over -= self._remove(strip)
        require_free(cache, needed)

    def _remove(self, strip: int) -> int:
        """Remove the file of a strip; return its bytes."""
        self._kept.remove(strip)
        for block in self.dataset.layout.strip(strip):
            self._blocks.pop(block, None)
        with contextlib.suppress(FileNotFoundError):
            size = self._path(strip).stat().st_size
            self._path(strip).unlink()
            return size
        return 0


def _mapped(path: Path) -> Entries:
    """Map the entries in a file; return none if it is missing or malformed."""
    try:
        return np.memmap(path, ENTRY, "r")
    except (OSError, ValueError):
        return np.empty(0, ENTRY)
