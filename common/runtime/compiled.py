"""Compile numeric loops with Numba in nopython mode, without the GIL, cached on disk between processes.

Kernels are loops over numpy arrays and numbers. Importing this module imports Numba, which is slow, so
`glovewire --help` must import no kernel module. Numba writes its cache beside the kernel's module or, if that folder is
read-only, to the user's cache folder; NUMBA_CACHE_DIR overrides both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import hidden
from .rlimits import require_address_space

require_address_space()
import numba  # noqa: E402

P = ParamSpec("P")
R = TypeVar("R")
_FAST: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy", "nogil": True}
_BARE: dict[str, Any] = {**_FAST, "_nrt": False}


def without_blas() -> AbstractContextManager[None]:
    """Hide SciPy's BLAS in the block: Numba would load it with the first kernel, 10 to 15 MB that no kernel uses."""
    return hidden("scipy.linalg.cython_blas")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with strict floating-point order, at the first call for each combination of argument types."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))


def compiled_fast(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with reordered sums, so that loops vectorise; results repeat on the same processor, NaN propagates."""
    return cast(Callable[P, R], numba.njit(cache=True, **_FAST)(function))


def compiled_bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile like `compiled_fast`, but without reference counting, for loops that allocate nothing.

    Counting takes atomic instructions, which cost more than the call that they accompany in an innermost loop.
    """
    return cast(Callable[P, R], numba.njit(cache=True, **_BARE)(function))


def inlined_fast(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that is inlined into every `compiled_bare` function that calls it."""
    return cast(Callable[P, R], numba.njit(forceinline=True, **_BARE)(function))
