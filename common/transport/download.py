"""Bring the dataset of a run from its shards to this machine: a process needs no copy of its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..storage.cache import cached
from ..storage.dataset import Dataset
from .client import RequestClient
from .files import Served


@contextlib.contextmanager
def dataset_of_run(client: RequestClient, cache: Path, cache_bytes: int, *, verify: bool = True) -> Iterator[Dataset]:
    """Yield the dataset of the run that `client` reaches; download it unless `cache` has it, as `cached` does."""
    with cached(Served(client), cache, cache_bytes, opened, verify=verify) as dataset:
        yield dataset


def opened(folder: Path, verify: bool) -> Dataset:
    """Open a dataset of the cache."""
    return Dataset.open(folder, verify=verify)
