"""The project's own Python files, as text and syntax trees, for the tests that read them. Imports none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "launch", "monitor", "preprocess", "server", "vectors", "worker")


@dataclass(frozen=True)
class Module:
    """A Python file of the project: its path from the root, and its text."""

    path: str
    text: str

    @staticmethod
    def read(path: Path) -> Module:
        """The module in a file below the root."""
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

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every imported module by its absolute name, and whether it was absolute (0) or relative (1 and more)."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, 0) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from self._from(node)
            elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
                yield from ((str(name.value), 0) for name in node.args[:1] if isinstance(name, ast.Constant))

    def _from(self, node: ast.ImportFrom) -> Iterator[tuple[str, int]]:
        """`from a.b import c` is a.b.c: whether c is a module or a name in one, it stands below a.b."""
        above = Path(self.path).parts[: -node.level] if node.level else ()
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}" if base else alias.name, node.level


def called(call: ast.Call) -> str:
    """The last name of what is called: `read` for `a.b.read()`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_within(name: str, module: str) -> bool:
    """Whether `name` is `module` or something in it."""
    return name == module or name.startswith(module + ".")


def modules(*folders: str) -> list[Module]:
    """Every module below these folders of the project, sorted."""
    return [Module.read(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
