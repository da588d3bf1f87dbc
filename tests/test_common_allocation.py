"""Freed buffers stay with the process: the kernel does not clear them again. Counted in page faults, not timed."""

from __future__ import annotations

import subprocess
import sys

from source import ROOT

PROGRAM = """
import resource, sys
from common.allocation import keep_buffers
if sys.argv[1] == "kept":
    assert keep_buffers() and keep_buffers()
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        one, two = bytes(range(256)) * 16_384, bytes(range(256)) * 16_384  # 4 MiB each
        del one, two
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touched()
print(touched())
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_buffers_serve_again_without_page_faults() -> None:
    assert faults("kept") < 2_000 < faults("given back")
