"""A small file system for tests of full disks. Mounting one needs privileges."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

SMALL_DISK = "512k"


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Mount a file system of SMALL_DISK at `path`."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=700", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def may_mount(folder: Path) -> bool:
    """Whether this process may mount a small file system."""
    try:
        with small_disk(folder / "probe"):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False
