"""Collect the `pydoc` corpus: English prose that comes with every Python installation.

It consists of the help topics of `pydoc_data` and the docstrings of the standard library and of the installed packages
that Glovewire depends on, as distinct paragraphs. Source files are parsed, never imported or run.
"""

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path

from ..parallel.pool import Job, local_pool

_PROJECT = "glovewire"
_TESTS = {"test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
# Minimum words and minimum share of letters of prose; they exclude example sessions, tables and rules.
_MIN_WORDS = 4
_MIN_LETTERS = 0.6
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BODIES = ("body", "handlers", "orelse", "finalbody")
FILES_PER_TASK = 50
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


def paragraphs(processes: int = 1) -> Iterator[str]:
    """Yield every distinct paragraph: help topics, then docstrings in file order, parsed by `processes` processes."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for lines in chain([_prose(topics.values())], _parsed(processes)):
        for line in lines:
            if line not in seen:
                seen.add(line)
                yield line


class _ParseJob(Job):
    """Turns a numbered group of files into the paragraphs of their docstrings."""

    def do(self, task: tuple[int, list[Path]]) -> tuple[int, list[str]]:
        number, paths = task
        return number, _prose(text for path in paths for text in _docstrings(path))


def _parsed(processes: int) -> Iterator[list[str]]:
    """Yield the paragraphs of each group of files, in order, as soon as all earlier groups have been parsed."""
    paths = list(source_files())
    groups = [paths[at : at + FILES_PER_TASK] for at in range(0, len(paths), FILES_PER_TASK)]
    early: dict[int, list[str]] = {}
    following = 0
    with local_pool(processes, _ParseJob, lambda _: None) as pool:
        for number, lines in pool.run(enumerate(groups)):
            early[number] = lines
            while following in early:
                yield early.pop(following)
                following += 1


def _prose(texts: Iterable[str]) -> list[str]:
    """Return the prose paragraphs of `texts`, each paragraph as one line."""
    found = (" ".join(part.split()) for text in texts for part in re.split(r"\n[ \t]*\n", text))
    return [line for line in found if _is_prose(line)]


def source_files() -> Iterator[Path]:
    """Yield the modules of the standard library and of the packages that Glovewire depends on, without tests."""
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
    """Return the names of the installed packages that Glovewire depends on, directly or indirectly, without extras."""
    found: set[str] = set()
    waiting = [_PROJECT]
    while waiting:
        name = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        needed = [match[0] for r in requirements if "extra ==" not in r and (match := _REQUIREMENT.match(r))]
        waiting.extend({re.sub(r"[-_.]+", "-", each).lower() for each in needed} - found)
    return found - {_PROJECT}


def _docstrings(path: Path) -> Iterator[str]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
        # only statements are followed: a docstring is never inside an expression
        inner = [child for field in _BODIES for child in getattr(node, field, ())]
        waiting.extend(reversed(inner))


def _is_prose(line: str) -> bool:
    if ">>>" in line or line.count(" ") + 1 < _MIN_WORDS or "\0" in line:
        return False
    return sum(character.isalpha() for character in line) >= _MIN_LETTERS * len(line)
