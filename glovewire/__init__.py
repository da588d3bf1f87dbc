"""Glovewire: a parameter server over ZeroMQ that trains word vectors and dense models.

Names are imported when they are first used, so that `import glovewire` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glovewire.common import errors

    __version__: str

__all__ = ["__version__", "errors"]
_MODULES = {"errors": "glovewire.common.errors"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("glovewire")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'glovewire' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
