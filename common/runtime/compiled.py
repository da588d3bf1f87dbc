"""Compile numeric loops with Numba in nopython mode, without the GIL, cached on disk between processes.

Only for kernels: loops over numpy arrays and numbers. Importing this module imports Numba, so `glovewire --help` must
import no kernel module. Numba caches beside the module or, where that cannot be written, in the user's cache folder;
NUMBA_CACHE_DIR overrides both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

import numba

from ..errors import hidden

P = ParamSpec("P")
R = TypeVar("R")
_FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy", "nogil": True}
_BLAS = "scipy.linalg.cython_blas"
_BARE: dict[str, Any] = {**_FAST, "_nrt": False}


def without_blas() -> AbstractContextManager[None]:
    """Hide SciPy's BLAS from Numba, which loads it with the first kernel: 10 to 15 MB that ours never call."""
    return hidden(_BLAS)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with exact floating point, at the first call for each combination of argument types."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))


def compiled_fast(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with sums in any order, so that loops vectorise: same bits on the same processor, NaN is still seen."""
    return cast(Callable[P, R], numba.njit(cache=True, **_FAST)(function))


def compiled_bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile like `compiled_fast`, without reference counts, for loops that allocate nothing.

    Each count is an atomic instruction; before a call in an innermost loop they cost more than the call.
    """
    return cast(Callable[P, R], numba.njit(cache=True, **_BARE)(function))


def inlined_fast(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of a `compiled_bare` loop into every place that calls it."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **_BARE)(function))
