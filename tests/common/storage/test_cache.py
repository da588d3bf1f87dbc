"""A cache that several processes of a machine share."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from failing_disk import untold
from handmade import random_dataset

from glovewire.common.errors import OutputError
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.cache import cached
from glovewire.common.storage.dataset import Dataset

DEADLINE_S = 30.0


@dataclass
class Folder:
    """An artifact that is brought from a folder of this machine."""

    path: Path

    def manifest(self, folder: str = "") -> tuple[Manifest, bytes]:
        text = (self.path / folder / MANIFEST).read_bytes()
        return Manifest.parse(text, MANIFEST), text

    def fetch(self, name: str, size: int, path: Path) -> None:
        shutil.copy(self.path / name, path)
        assert path.stat().st_size == size


def test_two_that_find_the_cache_empty_at_the_same_time_use_it_at_the_same_time(tmp_path: Path) -> None:
    """Seen to fail: one waited until the other had trained."""
    random_dataset(tmp_path / "data", size=40)
    both_find_nothing, both_use_it = threading.Barrier(2), threading.Barrier(2)

    def use() -> int:
        found = []

        def opens(folder: Path, verify: bool) -> Dataset:
            if not found:
                found.append(folder)
                both_find_nothing.wait(DEADLINE_S)
            return Dataset.open(folder, verify=verify)

        with cached(Folder(tmp_path / "data"), tmp_path / "cache", 1 << 30, opens) as dataset:
            both_use_it.wait(DEADLINE_S)
            return len(dataset.words)

    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in (pool.submit(use), pool.submit(use))] == [40, 40]


@pytest.mark.parametrize("name", ["", "the artifact"])
def test_a_disk_that_does_not_tell_what_is_there_is_one_clear_error(tmp_path: Path, name: str) -> None:
    """Seen to fail: with a traceback."""
    random_dataset(tmp_path / "data", size=40)
    source, cache = Folder(tmp_path / "data"), tmp_path / "cache"
    path = cache / source.manifest()[0].checksum if name else cache
    text = f"cache {cache} cannot be written: Input/output error"

    def opens(folder: Path, verify: bool) -> Dataset:
        return Dataset.open(folder, verify=verify)

    with untold(path), pytest.raises(OutputError, match=text), cached(source, cache, 1 << 30, opens):
        pass
