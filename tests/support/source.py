"""The project's own Python files, as text and syntax trees, for tests that read them. None of them is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("common", "monitor", "preprocess", "server", "worker")
"""Top-level folders that are imported as `glovewire.<name>`, through a link in the folder glovewire."""
PACKAGES = (*LINKED, "glovewire")


@dataclass(frozen=True)
class Module:
    """A Python file of the project: its path from the root, and its text."""

    path: str
    text: str

    @staticmethod
    def read(path: Path) -> Module:
        """Read the module in a file below the root."""
        return Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        return Path(self.path).stem

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def dotted(self) -> str:
        """The name by which it is imported, without `glovewire` if a link leads to it: `server.core.core`."""
        return ".".join(Path(self.path).with_suffix("").parts).removesuffix(".__init__")

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every imported name, in the form of `dotted`, and whether the import is absolute (0) or relative (1 or more).

        A plain `server` or `common`, which works by accident in a checkout, keeps a marker: `?server.core`.
        """
        return ((name, level) for _, name, level in self.placed_imports())

    def placed_imports(self) -> Iterator[tuple[ast.AST, str, int]]:
        """The same as `imports`, with the importing node."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, _shortened(alias.name), 0) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node, name, level) for name, level in self._from(node))
            elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
                constants = (name for name in node.args[:1] if isinstance(name, ast.Constant))
                yield from ((node, _shortened(str(name.value)), 0) for name in constants)

    def _from(self, node: ast.ImportFrom) -> Iterator[tuple[str, int]]:
        """Take `from a.b import c` as a.b.c: whether c is a module or a name in one, it is below a.b."""
        above = Path(self.path).parts[: -node.level] if node.level else ()
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{base}.{alias.name}" if base else alias.name
            yield (name if node.level else _shortened(name)), node.level


def _shortened(name: str) -> str:
    """An absolute name without `glovewire` if a link follows; `?` precedes a name that is imported without it."""
    first, _, rest = name.partition(".")
    if first in LINKED:
        return f"?{name}"
    return rest if first == "glovewire" and rest.partition(".")[0] in LINKED else name


def called(call: ast.Call) -> str:
    """The last name of the called function: `read` for `a.b.read()`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_within(name: str, module: str) -> bool:
    """Whether `name` is `module` or something in it."""
    return name == module or name.startswith(module + ".")


def modules(*folders: str) -> list[Module]:
    """Every module below these folders of the project, sorted."""
    return [Module.read(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
