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


def test_nltk_is_loaded_without_the_libraries_of_its_classifiers_and_they_are_there_afterwards() -> None:
    assert output_of(NLTK_ALONE) == "well\n"
