"""Freed buffers stay with the process, and the compiler's code does not. Counted in pages, not timed."""

from __future__ import annotations

import subprocess
import sys

from source import ROOT

PROGRAM = """
import resource, sys
from common.runtime.memory import keep_buffers
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

COMPILES = r"""
import re
from pathlib import Path
import numba
from common.runtime.memory import settle
def resident_kib():
    of_code = r"^[0-9a-f-]+ r-xp .*libllvmlite.*\n(?:\w+:.*\n)*?Rss: +(\d+) kB"
    return sum(map(int, re.findall(of_code, Path("/proc/self/smaps").read_text(), re.MULTILINE)))
double = numba.njit(lambda x: x + x)
assert double(1) == 2
before = resident_kib()
settle()
print(before, resident_kib(), double(1.5))
"""

WITHOUT_BLAS = """
import sys
from common.runtime.compiled import without_blas
from worker import objectives
with without_blas():
    objectives.warm()
assert not any(name.startswith("scipy.linalg") for name in sys.modules)
import scipy.linalg.cython_blas as blas
with without_blas():
    assert sys.modules["scipy.linalg.cython_blas"] is None
assert sys.modules["scipy.linalg.cython_blas"] is blas
print("well")
"""

NLTK_ALONE = """
import sys
from preprocess.tokens.nltk_tokens import make_tokenizer
make_tokenizer("nltk").line("")
assert not {"sklearn", "pandas", "scipy.stats", "scipy.sparse"} & set(sys.modules)
import scipy.stats
print("well")
"""


def said(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def faults(how: str) -> int:
    return int(said(PROGRAM, how))


def test_freed_buffers_serve_again_without_page_faults() -> None:
    assert faults("kept") < 2_000 < faults("given back")


def test_the_compiler_is_no_longer_in_memory_and_still_compiles() -> None:
    before, after, doubled = said(COMPILES).split()
    assert int(after) < 1024 < 10_240 < int(before)
    assert float(doubled) == 3


def test_kernels_are_loaded_without_the_linear_algebra_that_they_do_not_call_and_it_is_there_afterwards() -> None:
    assert said(WITHOUT_BLAS) == "well\n"


def test_nltk_is_loaded_without_the_libraries_of_its_classifiers_and_they_are_there_afterwards() -> None:
    assert said(NLTK_ALONE) == "well\n"
