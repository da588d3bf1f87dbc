"""The embedded corpus: English prose that every Python install carries.

The help topics of `pydoc_data` and the docstrings of the standard library and of the installed packages that
Glovewire itself needs, as paragraphs, each once. Sources are parsed, never imported or run.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from ..parallel.pool import Pool

_PROJECT = "glovewire"
_TESTS = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
# A paragraph of prose: several words, mostly letters; not an example session, a table or a line of dashes.
_FEWEST_WORDS = 4
_LEAST_LETTERS = 0.6
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BODIES = ("body", "handlers", "orelse", "finalbody")
_FILES_TOGETHER = 50
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


def paragraphs(processes: int = 1) -> Iterator[str]:
    """Every paragraph once, in the order of the files' names; the files are parsed by that many processes."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for lines in (_prose(topics.values()), *_parsed(processes)):
        for line in lines:
            if line not in seen:
                seen.add(line)
                yield line


class _ParseJob:
    """Numbered groups of files to the paragraphs of their docstrings."""

    def do(self, task: tuple[int, list[Path]]) -> tuple[int, list[str]]:
        number, paths = task
        return number, _prose(text for path in paths for text in _docstrings(path))

    def finish(self) -> None:
        """Nothing is left to do."""


def _parsed(processes: int) -> list[list[str]]:
    paths = list(_sources())
    groups = [paths[at : at + _FILES_TOGETHER] for at in range(0, len(paths), _FILES_TOGETHER)]
    with Pool(processes, _ParseJob, lambda _: None) as pool:
        return [lines for _, lines in sorted(pool.run(enumerate(groups)))]


def _prose(texts: Iterable[str]) -> list[str]:
    """The paragraphs of prose in these texts, each as one line."""
    found = (" ".join(part.split()) for text in texts for part in re.split(r"\n[ \t]*\n", text))
    return [line for line in found if _is_prose(line)]


def _sources() -> Iterator[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not _TESTS.intersection(path.relative_to(library).parts):
            yield path
    for name in sorted(_packages()):
        files = metadata.distribution(name).files or []
        for file in sorted(files):
            if file.suffix == ".py" and not _TESTS.intersection(file.parts) and ".." not in file.parts:
                yield Path(str(file.locate()))


def _packages() -> set[str]:
    """Names of the installed distributions that Glovewire needs, directly or not; extras are left out."""
    found: set[str] = set()
    waiting = [_PROJECT]
    while waiting:
        name = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        needed = [r for r in requirements if "extra ==" not in r]
        fresh = {_normal(match[0]) for r in needed if (match := _REQUIREMENT.match(r))} - found
        found |= {name for name in fresh if _installed(name)}
        waiting.extend(fresh)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _docstrings(path: Path) -> Iterator[str]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes are not the user's concern
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
        # only statements are followed, for a docstring is never inside an expression
        inner = [child for field in _BODIES for child in getattr(node, field, ())]
        waiting.extend(reversed(inner))


def _is_prose(line: str) -> bool:
    if ">>>" in line or line.count(" ") + 1 < _FEWEST_WORDS or "\0" in line:
        return False
    letters = sum(character.isalpha() for character in line)
    return letters >= _LEAST_LETTERS * len(line)
