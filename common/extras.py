"""Libraries that may be there or not: one clear line that says how to get them, and how others do without them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from .errors import MissingExtra


def require_extra(module: str, extra: str, option: str) -> None:
    """MissingExtra naming the command to install, when `module` is not there; `option` is what needs it."""
    if find_spec(module) is None:
        raise MissingExtra(f"{option} needs {module}: pip install 'glovewire[{extra}]'")


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """While this lasts, an import of the modules `names` says that there are none.

    For libraries that load others only to offer more, which takes memory and time in each of our processes.
    """
    modules: dict[str, ModuleType | None] = cast(Any, sys.modules)
    here = {name: modules.pop(name) for name in names if name in modules}
    modules.update(dict.fromkeys(names))  # None is Python's own mark of a module that is not there
    try:
        yield
    finally:
        for name in names:
            del modules[name]
        modules.update(here)
