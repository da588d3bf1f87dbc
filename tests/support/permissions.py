"""A folder that this process may not read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
"""The id of the user `nobody`, who owns no files."""


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Within the block, nothing below `folder` is accessible, even to the superuser, who gives up that right."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)
