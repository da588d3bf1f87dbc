"""Each promise of docs/security.md names a test that exists, or an attack of the benchmark that plays them all."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from source import ROOT

PAGE = ROOT / "docs" / "security.md"
ATTACKS = ROOT / "benchmarks" / "attacks.py"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ATTACK = re.compile(r"“([^”]+)”")
SECTION = "## What every server enforces"


@cache
def names_in(path: str) -> frozenset[str]:
    """The test functions of a file, none if there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


@cache
def attacks() -> frozenset[str]:
    """The names of all attacks."""
    calls = [node for node in ast.walk(ast.parse(ATTACKS.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Attack"]
    return frozenset(str(ast.literal_eval(call.args[0])) for call in made)


def broken_promises(page: str) -> list[str]:
    """What the page promises without a proof, or with one that does not exist."""
    complaints = [f"{path} has no {name}" for path, name in TEST.findall(page) if name not in names_in(path)]
    complaints += [f"no attack is called {name}" for name in ATTACK.findall(page) if name not in attacks()]
    _, _, section = page.partition(f"\n{SECTION}\n")
    rows = re.findall(r"^\| (?!-|promise)(.+) \|$", section.split("\n## ")[0], re.MULTILINE)
    return complaints + [f"no proof: {row[:60]}" for row in rows if not TEST.search(row) and not ATTACK.search(row)]


def test_every_promise_has_its_proof() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n{SECTION}\n" in page
    assert broken_promises(page) == []


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("| nothing is lost | 0 | |", "no proof"),
        ("| nothing is lost | `tests/server/test_nothing.py::test_it` |", "has no test_it"),
        ("| nothing is lost | `tests/project/test_docs_promises.py::test_it` |", "has no test_it"),
        ("| nothing is lost | “love and peace” |", "no attack"),
    ],
)
def test_a_promise_without_a_proof_is_found(row: str, complaint: str) -> None:
    assert complaint in "".join(broken_promises(f"\n{SECTION}\n\n| promise | proof |\n|---|---|\n{row}\n"))
