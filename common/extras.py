"""Optional dependencies: there, or one clear line that says how to get them."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import MissingExtra


def require_extra(module: str, extra: str, option: str) -> None:
    """MissingExtra naming the command to install, when `module` is not there; `option` is what needs it."""
    if find_spec(module) is None:
        raise MissingExtra(f"{option} needs {module}: pip install 'glovewire[{extra}]'")
