"""Download the dataset of a run from its shards, for processes without a copy on their machine.

A shard downloads all of it, because it sends it to others; so does a worker that trains on random minibatches. A worker
that trains blocks gets the entries of its strips later, in `worker/strip_entries.py`.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from .. import errors
from ..storage.cache import Source, cached
from ..storage.dataset import ENTRIES, Dataset
from .client import RequestClient


def trains_blocks(client: RequestClient) -> bool:
    """Ask the first server whether the run trains blocks; ProtocolError if it does not say so."""
    try:
        return bool(client.status(0)["schedule"] == "blocks")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise errors.ProtocolError(f"{client.where(0)} sent a status that cannot be read") from error


def downloaded(
    source: Source, cache: Path, cache_bytes: int, *, verify: bool = True, in_blocks: bool = False
) -> AbstractContextManager[Dataset]:
    """Open the dataset of `source` for a `with` block; download it unless `cache` has it, as `cached` does.

    With `in_blocks`, it is downloaded without its entries and opened in blocks, unless `cache` has all of it.
    """
    in_blocks = in_blocks and not (cache / source.manifest()[0].checksum).exists()

    def opened(folder: Path, verify: bool) -> Dataset:
        return Dataset.open(folder, verify=verify, in_blocks=in_blocks)

    without = [ENTRIES] if in_blocks else []
    return cached(source, cache, cache_bytes, opened, verify=verify, without=without)
