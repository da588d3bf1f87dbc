"""What the tests of the server share."""

from __future__ import annotations

import pytest
from shards import in_memory

from glovewire.common.storage.dataset import Dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small dataset; tests that change its files make one of their own."""
    return in_memory(tmp_path_factory.mktemp("data") / "d")
