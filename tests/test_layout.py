"""The house rules that a machine can hold: who imports whom, what stays pure, how modules are named, begun and sized.

Every rule is a function from a module's syntax tree to a list of complaints. It runs over every module of the project,
and over a snippet that breaks it, so that one sees that it can fail. DESIGN sections 3 and 7 are the rules' source;
CONTRIBUTING.md tells them to people.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from source import PACKAGES, ROOT, Module, called, is_within, modules

OURS = modules(*PACKAGES)
OTHERS = modules("tests", "benchmarks", "examples")

MAY_IMPORT = {
    "common": set(),
    "launch": {"common", "monitor", "preprocess", "server", "vectors", "worker"},
    "monitor": {"common"},
    "preprocess": {"common"},
    "server": {"common"},
    "vectors": {"common"},
    "worker": {"common"},
}

CONFINED = {
    "zmq": {
        "common/sockets.py",
        "common/keys.py",
        "common/handshakes.py",
        "server/daemon.py",
        "worker/client.py",
        "monitor/feed.py",
    },
    "nltk": {"preprocess/corpus.py", "preprocess/tokens.py"},
    "datasets": {"preprocess/corpus.py", "preprocess/tokens.py"},
}
"""Libraries that only these modules may import, at the top or inside a function."""

PURE = {
    "core", "credit", "table", "optimizers", "consistency", "modes", "policies", "schedule", "glove", "batches",
    "history",
}  # fmt: skip
IMPURE_IMPORTS = {"zmq", "time", "datetime", "socket", "select", "subprocess", "common.sockets"}
IMPURE_CALLS = {"open", "fdopen", "memmap", "read_text", "read_bytes", "write_text", "write_bytes"}

BANNED_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers"}
BROAD = {"Exception", "BaseException"}

MAX_LINES = 300
LONGER: dict[str, str] = {}
"""Files that may be longer, each with its reason."""


# ---- the rules


def wrong_directions(module: Module) -> list[str]:
    """launch -> server, worker, monitor, preprocess, vectors -> common, and never otherwise."""
    tops = {name.partition(".")[0] for name, _ in module.imports()}
    wrong = sorted(tops & set(PACKAGES) - MAY_IMPORT[module.package] - {module.package})
    return [f"{module.package} must not import {top}" for top in wrong]


def wrong_import_styles(module: Module) -> list[str]:
    """Relative inside a package, absolute between packages."""
    complaints = []
    for name, level in module.imports():
        inside = is_within(name, module.package)
        if inside and level == 0:
            complaints.append(f"{name}: write it relative, inside a package")
        if not inside and level > 0:
            complaints.append(f"{name}: write it absolute, between packages")
    return complaints


def strangers(module: Module) -> list[str]:
    """zmq, nltk and datasets only where they belong."""
    names = [name for name, _ in module.imports()]
    return [
        f"{library} belongs to {', '.join(sorted(homes))} alone"
        for library, homes in CONFINED.items()
        if module.path not in homes and any(is_within(name, library) for name in names)
    ]


def impurities(module: Module) -> list[str]:
    """What decides does no I/O and has no clock: `now` and data are arguments."""
    if module.name not in PURE:
        return []
    imported = [name for name, _ in module.imports() if any(is_within(name, bad) for bad in IMPURE_IMPORTS)]
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and _touches_a_file(node))
    return imported + [f"{called(call)}() in line {call.lineno}" for call in calls]


def _touches_a_file(call: ast.Call) -> bool:
    """A method `open` is a file's if it gets nothing or a mode: `sessions.open(hello)` is none."""
    if called(call) == "open" and isinstance(call.func, ast.Attribute) and call.args:
        return isinstance(call.args[0], ast.Constant) or ast.unparse(call.func.value) in {"io", "os", "gzip", "lzma"}
    return called(call) in IMPURE_CALLS


def bad_names(module: Module) -> list[str]:
    """No module or package bears a standard-library name; nothing is called utils, helpers or manager."""
    names = {part.removesuffix(".py") for part in Path(module.path).parts} - {"__init__"}
    complaints = [f"{name} is a module of the standard library" for name in names & sys.stdlib_module_names]
    classes = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    for name in sorted(names | classes):
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
        complaints += [f"{name}: say what it does instead of {word!r}" for word in words & BANNED_WORDS]
    return complaints


def bad_beginnings(module: Module) -> list[str]:
    """Every module begins with what it is for; an __init__ is nothing else."""
    if not ast.get_docstring(module.tree):
        return ["no docstring"]
    if module.name == "__init__" and len(module.tree.body) > 1:
        return ["__init__.py holds more than its docstring"]
    return []


def excess_lines(module: Module) -> list[str]:
    """One purpose a file."""
    lines = len(module.text.splitlines())
    if lines > MAX_LINES and module.path not in LONGER:
        return [f"{lines} lines, more than {MAX_LINES}: what in it has a name of its own?"]
    return []


def swallowed_errors(module: Module) -> list[str]:
    """No broad except that does nothing, no suppress(Exception); ruff knows the bare except and raise Exception."""
    complaints = []
    for node in ast.walk(module.tree):
        caught: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler) and all(_does_nothing(line) for line in node.body):
            caught = [node.type or ast.Name("BaseException")]
        elif isinstance(node, ast.Call) and called(node) == "suppress":
            caught = list(node.args)
        if BROAD & {inner.id for name in caught for inner in ast.walk(name) if isinstance(inner, ast.Name)}:
            complaints.append(f"line {getattr(node, 'lineno', 0)} swallows every error")
    return complaints


def _does_nothing(line: ast.stmt) -> bool:
    is_constant = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return is_constant or isinstance(line, ast.Pass | ast.Continue)


# ---- over the whole project


def of_all(modules: list[Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules, ids=lambda module: module.path)


@of_all(OURS)
def test_imports_go_one_way(module: Module) -> None:
    assert wrong_directions(module) == []


@of_all(OURS)
def test_imports_are_relative_inside_a_package_and_absolute_between(module: Module) -> None:
    assert wrong_import_styles(module) == []


@of_all(OURS)
def test_libraries_stay_where_they_belong(module: Module) -> None:
    assert strangers(module) == []


@of_all([module for module in OURS if module.name in PURE])
def test_what_decides_does_no_io(module: Module) -> None:
    assert impurities(module) == []


@of_all(OURS)
def test_names_say_what_a_thing_does(module: Module) -> None:
    assert bad_names(module) == []


@of_all(OURS + OTHERS)
def test_a_module_begins_with_what_it_is_for(module: Module) -> None:
    assert bad_beginnings(module) == []


@of_all(OURS + OTHERS)
def test_a_file_has_one_purpose(module: Module) -> None:
    assert excess_lines(module) == []


@of_all(OURS + OTHERS)
def test_no_error_is_swallowed(module: Module) -> None:
    assert swallowed_errors(module) == []


def test_the_packages_are_those_that_are_shipped() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(PACKAGES)
    assert {module.package for module in OURS} == set(PACKAGES)


def test_the_rules_name_what_is_there() -> None:
    """A renamed module must not slip out of its rule."""
    assert {module.name for module in OURS} >= PURE
    assert {module.path for module in OURS + OTHERS} >= LONGER.keys()


# ---- every rule can fail

Rule = Callable[[Module], list[str]]

BROKEN: list[tuple[Rule, str, str]] = [
    (wrong_directions, "common/wire.py", "import server"),
    (wrong_directions, "common/wire.py", "def f():\n    from server.core import Core"),
    (wrong_directions, "worker/client.py", "from server import core"),
    (wrong_directions, "server/cli.py", "if TYPE_CHECKING:\n    import launch.local"),
    (wrong_directions, "monitor/feed.py", "import importlib\nimportlib.import_module('vectors.export')"),
    (wrong_directions, "preprocess/deep/corpus.py", "from ...worker import glove"),
    (wrong_import_styles, "server/core.py", "from server.table import Table"),
    (wrong_import_styles, "server/core.py", "import server.table"),
    (wrong_import_styles, "server/core.py", "from ..common import wire"),
    (strangers, "server/core.py", "def f():\n    import zmq.auth"),
    (strangers, "launch/local.py", "from zmq import Context"),
    (strangers, "preprocess/vocabulary.py", "import nltk"),
    (strangers, "vectors/export.py", "from datasets import Dataset"),
    (impurities, "server/core.py", "import time"),
    (impurities, "server/table.py", "def f(path):\n    with open(path) as stream: pass"),
    (impurities, "worker/batches.py", "def f(path):\n    return path.open()"),
    (impurities, "worker/batches.py", "path.open('rb')"),
    (impurities, "worker/batches.py", "gzip.open(path)"),
    (impurities, "server/schedule.py", "from datetime import datetime"),
    (impurities, "monitor/history.py", "from common import sockets"),
    (impurities, "server/optimizers.py", "from common.sockets import send"),
    (bad_names, "server/queue.py", ""),
    (bad_names, "logging/wire.py", ""),
    (bad_names, "common/wire_utils.py", ""),
    (bad_names, "worker/helpers.py", ""),
    (bad_names, "worker/client.py", "class ConnectionManager: pass"),
    (bad_beginnings, "server/core.py", "import numpy"),
    (bad_beginnings, "server/core.py", '""""""'),
    (bad_beginnings, "server/__init__.py", '"""The daemon."""\nfrom .core import Core'),
    (excess_lines, "server/core.py", "\n" * (MAX_LINES + 1)),
    (swallowed_errors, "server/core.py", "try: f()\nexcept: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept Exception: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept (OSError, BaseException) as error: ..."),
    (swallowed_errors, "server/core.py", "for x in y:\n    try: f()\n    except Exception: continue"),
    (swallowed_errors, "server/core.py", "with contextlib.suppress(Exception): f()"),
]

FINE: list[tuple[Rule, str, str]] = [
    (wrong_directions, "launch/main.py", "import server.cli, worker.cli, common.settings"),
    (wrong_directions, "worker/client.py", "from common import wire\nfrom . import glove"),
    (wrong_directions, "worker/client.py", "from .server import x"),
    (
        wrong_import_styles,
        "worker/client.py",
        "from common.wire import encode\nfrom .stores import Store\nimport numpy",
    ),
    (strangers, "server/daemon.py", "import zmq"),
    (strangers, "server/core.py", "import zmqueue"),
    (impurities, "server/core.py", "import numpy, collections\nf(now)"),
    (impurities, "server/core.py", "sessions.open(hello)"),
    (impurities, "server/daemon.py", "import time"),
    (bad_names, "preprocess/tokens.py", "class Tokeniser: pass"),
    (bad_names, "common/sockets.py", "from contextlib import contextmanager"),
    (bad_beginnings, "server/__init__.py", '"""The daemon."""'),
    (excess_lines, "server/core.py", "\n" * MAX_LINES),
    (swallowed_errors, "server/core.py", "try: f()\nexcept OSError: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept Exception as error:\n    report(error)"),
    (swallowed_errors, "server/core.py", "with suppress(KeyError): f()\nraise ValueError"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_the_rule_can_fail(rule: Rule, path: str, text: str) -> None:
    assert rule(Module(path, text))


@pytest.mark.parametrize(("rule", "path", "text"), FINE)
def test_the_rule_lets_through_what_is_fine(rule: Rule, path: str, text: str) -> None:
    assert rule(Module(path, text)) == []
