"""A disk that begins to fail: some files cannot be read."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def untold(*paths: Path) -> Iterator[None]:
    """Within the block, every query whether one of `paths` exists fails with EIO."""
    names, look = set(map(str, paths)), os.stat

    def fail(path: Any, **more: Any) -> os.stat_result:
        if str(path) in names:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return look(path, **more)

    with mock.patch.object(os, "stat", fail):
        yield


@contextmanager
def unreadable(*paths: Path) -> Iterator[None]:
    """Within the block, opening any of `paths` fails with EIO."""
    names, opened = set(map(str, paths)), open

    def fail(path: Any, *args: Any, **more: Any) -> Any:
        if str(path) in names:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *args, **more)

    with mock.patch.object(builtins, "open", fail), mock.patch.object(io, "open", fail):
        yield
