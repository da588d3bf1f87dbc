"""Freed buffers stay with the process, and libraries that kernels do not call are not loaded. Counted, not timed."""

from __future__ import annotations

import subprocess
import sys

from source import ROOT

PROGRAM = """
import resource, sys
from glovewire.common.runtime.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory() and keep_freed_memory()
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        one, two = bytes(range(256)) * 16_384, bytes(range(256)) * 16_384  # 4 MiB each
        del one, two
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
touched()
print(touched())
"""

WITHOUT_BLAS = """
import sys
from glovewire.common.runtime.compiled import without_blas
from glovewire.worker.kernels import objectives
with without_blas():
    objectives.warm()
assert not any(name.startswith("scipy.linalg") for name in sys.modules)
import scipy.linalg.cython_blas as blas
with without_blas():
    assert sys.modules["scipy.linalg.cython_blas"] is None
assert sys.modules["scipy.linalg.cython_blas"] is blas
print("well")
"""

WITHOUT_COMPILER = """
import numba
from glovewire.common.runtime.memory import release_code
def in_memory():
    code = [part for part in open("/proc/self/smaps").read().split("VmFlags") if " r-xp " in part and "libllvm" in part]
    return sum(int(line.split()[1]) for part in code for line in part.splitlines() if line.startswith("Rss:"))
def twice(number):
    return 2 * number
assert numba.njit(twice)(21) == 42
before = in_memory()
release_code("libllvmlite")
after = in_memory()
assert numba.njit(twice)(2.5) == 5.0
print(before > 10_000 and after < before / 10)
"""

NLTK_ALONE = """
import sys
from glovewire.preprocess.tokens.tokenizers import make_tokenizer
make_tokenizer("nltk").line("")
assert not {"sklearn", "pandas", "scipy.stats", "scipy.sparse"} & set(sys.modules)
import scipy.stats
print("well")
"""


def output_of(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def faults(how: str) -> int:
    return int(output_of(PROGRAM, how))


def test_freed_buffers_serve_again_without_page_faults() -> None:
    assert faults("kept") < 2_000 < faults("given back")


def test_kernels_are_loaded_without_the_linear_algebra_that_they_do_not_call_and_it_is_there_afterwards() -> None:
    assert output_of(WITHOUT_BLAS) == "well\n"


def test_the_compiler_leaves_memory_and_compiles_again() -> None:
    assert output_of(WITHOUT_COMPILER) == "True\n"


def test_nltk_is_loaded_without_the_libraries_of_its_classifiers_and_they_are_there_afterwards() -> None:
    assert output_of(NLTK_ALONE) == "well\n"
