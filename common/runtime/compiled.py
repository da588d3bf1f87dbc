"""The one way to compile a numeric loop: numba in nopython mode, without the GIL, cached on disk between processes.

Only kernels belong under it: loops over numpy arrays and numbers. Numba is imported with this module, so keep kernel
modules out of everything that `glovewire --help` touches. Where the package's own folder cannot be written, numba
keeps its cache in the user's cache folder; NUMBA_CACHE_DIR overrides both.
"""

from __future__ import annotations

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
    """For a process whose kernels are all ours, while it loads the first: they call no linear algebra.

    Numba loads SciPy's for those that do: 10 to 15 MB in every process. It goes without where there is none.
    """
    return hidden(_BLAS)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile in exact floating point, at the first call for each combination of argument types."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))


def compiled_fast(function: Callable[P, R]) -> Callable[P, R]:
    """The same, with sums in any order so that loops vectorise: same bits on the same processor, NaN still seen."""
    return cast(Callable[P, R], numba.njit(cache=True, **_FAST)(function))


def compiled_bare(function: Callable[P, R]) -> Callable[P, R]:
    """`compiled_fast` for a loop that allocates nothing: arrays are passed on without counting references to them.

    Each count is an atomic instruction; before a call in an innermost loop they cost more than the call.
    """
    return cast(Callable[P, R], numba.njit(cache=True, **_BARE)(function))


def inlined_fast(function: Callable[P, R]) -> Callable[P, R]:
    """A piece of a `compiled_bare` loop, compiled into it wherever it is called."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **_BARE)(function))
