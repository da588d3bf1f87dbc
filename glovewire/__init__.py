"""Glovewire: a parameter server over ZeroMQ that trains word vectors and dense models.

Names are imported when they are first used, so that `import glovewire` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glovewire.common import errors

    from .vectors.keyed_vectors import KeyedVectors, load

    __version__: str

_MODULES = {"errors": "glovewire.common.errors"}
_NAMES = {
    "KeyedVectors": "glovewire.vectors.keyed_vectors",
    "load": "glovewire.vectors.keyed_vectors",
}
__all__ = ["KeyedVectors", "__version__", "errors", "load"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("glovewire")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'glovewire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
