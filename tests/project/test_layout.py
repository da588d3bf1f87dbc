"""The house rules that a machine can check: import directions and cycles, purity, names, folder sizes.

Every rule is a function from a module's syntax tree (or from all modules) to a list of complaints. It runs over every
module of the project, and over a snippet that breaks it, which shows that it can fail. CONTRIBUTING.md explains the
rules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from source import LINKED, PACKAGES, ROOT, Module, called, is_within, modules

OURS = modules(*PACKAGES)
OTHERS = modules("tests", "benchmarks", "examples")

MAY_IMPORT = {
    "common": set(),
    "glovewire": set(LINKED),
    "monitor": {"common"},
    "preprocess": {"common"},
    "server": {"common"},
    "worker": {"common"},
}

CONFINED = {
    "zmq": {
        "common/transport/sockets.py",
        "common/transport/connections.py",
        "common/transport/curve_keys.py",
        "common/transport/zap.py",
        "common/transport/links.py",
        "server/daemon.py",
        "server/peer_socket.py",
        "monitor/stream/feed.py",
    },
    "fsspec": {"common/storage/stores.py"},
    "s3fs": set(),
    "nltk": {"preprocess/corpus/sources.py", "preprocess/tokens/nltk_tokens.py"},
    "datasets": {"preprocess/corpus/sources.py", "preprocess/tokens/nltk_tokens.py"},
}
"""Libraries that only these modules may import, at the top or inside a function."""

PURE = {
    "common/client/", "common/model/", "server/core/", "server/table/", "server/consistency/", "server/leases/",
    "server/sessions.py", "server/checkpoints/cuts.py", "monitor/history/history.py",
}  # fmt: skip
"""Folders and modules that decide without I/O."""
IMPURE_IMPORTS = {"zmq", "time", "datetime", "socket", "select", "subprocess", "common.transport.sockets"}
IMPURE_CALLS = {"open", "fdopen", "memmap", "read_text", "read_bytes", "write_text", "write_bytes"}

BANNED_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers"}
BROAD = {"Exception", "BaseException"}
MAX_MODULES = 14
"""Modules that one folder may hold, `__init__` aside."""


# ---- the rules

Rule = Callable[[Module], list[str]]


def wrong_directions(module: Module) -> list[str]:
    """Imports go glovewire -> server, worker, monitor, preprocess -> common, and never otherwise."""
    tops = {name.partition(".")[0] for name, _ in module.imports()}
    wrong = sorted(tops & set(PACKAGES) - MAY_IMPORT[module.package] - {module.package})
    return [f"{module.package} must not import {top}" for top in wrong]


def wrong_import_styles(module: Module) -> list[str]:
    """Relative inside a package, absolute and by `glovewire` between packages."""
    complaints = []
    for name, level in module.imports():
        inside = is_within(name, module.package)
        if name.startswith("?"):
            complaints.append(f"{name[1:]}: import it as glovewire.{name[1:]}")
        elif inside and level == 0:
            complaints.append(f"{name}: write it relative, inside a package")
        elif not inside and level > 0:
            complaints.append(f"{name}: write it absolute, between packages")
    return complaints


def strangers(module: Module) -> list[str]:
    """zmq, fsspec, nltk and datasets only where they belong."""
    names = [name for name, _ in module.imports()]
    return [
        f"{library} belongs to {', '.join(sorted(homes))} alone"
        for library, homes in CONFINED.items()
        if module.path not in homes and any(is_within(name, library) for name in names)
    ]


def is_pure(module: Module) -> bool:
    """Whether the module must decide without I/O."""
    return any(module.path == place or (place.endswith("/") and module.path.startswith(place)) for place in PURE)


def impurities(module: Module) -> list[str]:
    """What decides does no I/O and has no clock: `now` and data are arguments."""
    if not is_pure(module):
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
    """No module of the top two levels has a standard-library name; nothing is called utils, helpers or manager."""
    parts = Path(module.path).parts
    names = {part.removesuffix(".py") for part in parts} - {"__init__", "__main__"}
    complaints = [f"{name} is a module of the standard library" for name in names & sys.stdlib_module_names]
    classes = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    for name in sorted(names | classes):
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
        complaints += [f"{name}: say what it does instead of {word!r}" for word in words & BANNED_WORDS]
    return complaints


def bad_beginnings(module: Module) -> list[str]:
    """Every module begins with what it is for; an `__init__` may re-export names of its package, nothing else."""
    if not ast.get_docstring(module.tree):
        return ["no docstring"]
    if module.name == "__init__" and module.path != "glovewire/__init__.py":
        rest = module.tree.body[1:]
        return ["__init__.py does more than re-export"] if not all(map(_re_exports, rest)) else []
    return []


def _re_exports(line: ast.stmt) -> bool:
    if isinstance(line, ast.ImportFrom):
        return line.module == "__future__" or line.level == 1
    return isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__"


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


OWN = {"self", "cls", "other"}
LIBRARY_PRIVATE = {"os": {"_exit"}}


def private_accesses(module: Module) -> list[str]:
    """No reaching into another object: `x._y` only where x is `self`, `cls` or, of the same class, `other`."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in OWN)
        and node.attr not in LIBRARY_PRIVATE.get(ast.unparse(node.value), ())
    ]


def excess_modules(all_modules: Iterable[Module]) -> list[str]:
    """No folder holds more modules than a reader takes in at a glance."""
    counts = Counter(str(Path(each.path).parent) for each in all_modules if each.name != "__init__")
    return [f"{folder} holds {count} modules" for folder, count in sorted(counts.items()) if count > MAX_MODULES]


# ---- cycles

Graph = Mapping[str, set[str]]


def module_graph(all_modules: list[Module]) -> Graph:
    """Which of these modules imports which, at run time; what only the type checker reads is left out."""
    known = {module.dotted for module in all_modules}
    graph: dict[str, set[str]] = {}
    for module in all_modules:
        typing_only = {
            inner
            for node in ast.walk(module.tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        names = {name for node, name, _ in module.placed_imports() if node not in typing_only}
        found = {name if name in known else name.rpartition(".")[0] for name in names}
        graph[module.dotted] = (found & known) - {module.dotted}
    return graph


def package_graph(graph: Graph) -> Graph:
    """The same between sub-packages: a module in the root of a package stands for itself."""
    groups: dict[str, set[str]] = defaultdict(set)
    for module, imported in graph.items():
        groups[_group(module)] |= {_group(other) for other in imported} - {_group(module)}
    return groups


def _group(dotted: str) -> str:
    parts = dotted.split(".")
    return ".".join(parts[:2])


def cycles(graph: Graph) -> list[str]:
    """Every group of nodes that reach one another, as a line (Tarjan's strongly connected components)."""
    found: list[str] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(" <-> ".join(sorted(stack[at:])))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


# ---- over the whole project


RULES: dict[Rule, list[Module]] = {
    wrong_directions: OURS,
    wrong_import_styles: OURS,
    strangers: OURS,
    impurities: OURS,
    bad_names: OURS,
    private_accesses: OURS,
    bad_beginnings: OURS + OTHERS,
    swallowed_errors: OURS + OTHERS,
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert {module.path: found for module in RULES[rule] if (found := rule(module))} == {}


def test_no_modules_import_each_other() -> None:
    assert cycles(module_graph(OURS)) == []


def test_no_sub_packages_import_each_other() -> None:
    assert cycles(package_graph(module_graph(OURS))) == []


def test_no_folder_holds_too_many_modules() -> None:
    assert excess_modules(OURS) == []


def test_the_packages_are_those_that_are_shipped() -> None:
    """Each top-level package is linked into `glovewire`, which alone is installed."""
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(PACKAGES)
    links = {path.name: path.resolve() for path in (ROOT / "glovewire").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in LINKED}


def test_the_rules_name_what_is_there() -> None:
    """A renamed module must not slip out of its rule."""
    paths = {module.path for module in OURS}
    assert [place for place in PURE if not any(path.startswith(place) for path in paths)] == []
    assert {home for homes in CONFINED.values() for home in homes} <= paths


# ---- every rule can fail

BROKEN: list[tuple[Rule, str, str]] = [
    (wrong_directions, "common/wire.py", "import glovewire.server"),
    (wrong_directions, "common/wire.py", "def f():\n    from glovewire.server.core import Core"),
    (wrong_directions, "worker/client.py", "from glovewire.server import core"),
    (wrong_directions, "server/cli.py", "if TYPE_CHECKING:\n    import glovewire.launch.local"),
    (wrong_directions, "monitor/feed.py", "import importlib\nimportlib.import_module('glovewire.vectors.export')"),
    (wrong_directions, "preprocess/deep/corpus.py", "from ...worker import glove"),
    (wrong_import_styles, "server/core.py", "from glovewire.server.table import Table"),
    (wrong_import_styles, "server/core.py", "import glovewire.server.table"),
    (wrong_import_styles, "server/core.py", "from ..common import wire"),
    (wrong_import_styles, "server/core.py", "from common import wire"),
    (wrong_import_styles, "glovewire/cli/main.py", "import server.cli"),
    (strangers, "server/core.py", "def f():\n    import zmq.auth"),
    (strangers, "launch/local.py", "from zmq import Context"),
    (strangers, "preprocess/counts/vocabulary.py", "import nltk"),
    (strangers, "server/checkpoints/files.py", "def f():\n    import fsspec"),
    (strangers, "glovewire/vectors/export.py", "from datasets import Dataset"),
    (impurities, "server/core/core.py", "import time"),
    (impurities, "server/table/table.py", "def f(path):\n    with open(path) as stream: pass"),
    (impurities, "server/sessions.py", "def f(path):\n    return path.open()"),
    (impurities, "server/core/new.py", "path.open('rb')"),
    (impurities, "server/leases/schedule.py", "gzip.open(path)"),
    (impurities, "server/consistency/blocks.py", "from datetime import datetime"),
    (impurities, "monitor/history/history.py", "from glovewire.common.transport import sockets"),
    (impurities, "server/table/optimizers.py", "from glovewire.common.transport.sockets import send"),
    (bad_names, "server/queue.py", ""),
    (bad_names, "logging/wire.py", ""),
    (bad_names, "common/wire_utils.py", ""),
    (bad_names, "worker/helpers.py", ""),
    (bad_names, "worker/client.py", "class ConnectionManager: pass"),
    (bad_beginnings, "server/core.py", "import numpy"),
    (bad_beginnings, "server/core.py", '""""""'),
    (bad_beginnings, "server/__init__.py", '"""The daemon."""\nimport numpy'),
    (bad_beginnings, "server/__init__.py", '"""The daemon."""\nprint(1)'),
    (swallowed_errors, "server/core.py", "try: f()\nexcept: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept Exception: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept (OSError, BaseException) as error: ..."),
    (swallowed_errors, "server/core.py", "for x in y:\n    try: f()\n    except Exception: continue"),
    (swallowed_errors, "server/core.py", "with contextlib.suppress(Exception): f()"),
    (private_accesses, "server/daemon.py", "core._sessions.clear()"),
    (private_accesses, "server/daemon.py", "self.core._sessions"),
    (private_accesses, "server/daemon.py", "import time\ntime._sleep(1)"),
]

FINE: list[tuple[Rule, str, str]] = [
    (wrong_directions, "glovewire/cli/main.py", "import glovewire.server.cli, glovewire.worker.cli"),
    (wrong_directions, "worker/client.py", "from glovewire.common import wire\nfrom . import glove"),
    (wrong_directions, "worker/client.py", "from .server import x"),
    (
        wrong_import_styles,
        "worker/training/client.py",
        "from glovewire.common.wire import encode\nfrom ..stores import Store\nimport numpy",
    ),
    (strangers, "server/daemon.py", "import zmq"),
    (strangers, "server/core.py", "import zmqueue"),
    (impurities, "server/core/core.py", "import numpy, collections\nf(now)"),
    (impurities, "server/core/core.py", "sessions.open(hello)"),
    (impurities, "server/daemon.py", "import time"),
    (bad_names, "preprocess/tokens.py", "class Tokeniser: pass"),
    (bad_names, "common/sockets.py", "from contextlib import contextmanager"),
    (bad_beginnings, "server/__init__.py", '"""The daemon."""'),
    (bad_beginnings, "worker/dense/__init__.py", '"""Dense."""\nfrom .client import Client\n__all__ = ["Client"]'),
    (swallowed_errors, "server/core.py", "try: f()\nexcept OSError: pass"),
    (swallowed_errors, "server/core.py", "try: f()\nexcept Exception as error:\n    report(error)"),
    (swallowed_errors, "server/core.py", "with suppress(KeyError): f()\nraise ValueError"),
    (private_accesses, "server/core.py", "self._a = cls._b(other._a) + self.__dict__['c']; os._exit(1)"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_the_rule_can_fail(rule: Rule, path: str, text: str) -> None:
    assert rule(Module(path, text))


@pytest.mark.parametrize(("rule", "path", "text"), FINE)
def test_the_rule_lets_through_what_is_fine(rule: Rule, path: str, text: str) -> None:
    assert rule(Module(path, text)) == []


def test_a_cycle_is_found() -> None:
    sources = {
        "server/core/core.py": "def f():\n    from ..table.table import Table",
        "server/table/table.py": "from .kernels import step",
        "server/table/kernels.py": "from ..core import limits",
        "server/core/limits.py": "import numpy",
        "server/daemon.py": "if TYPE_CHECKING:\n    from .cli import main",
        "server/cli.py": "from glovewire.server.daemon import Daemon",
    }
    graph = module_graph([Module(path, text) for path, text in sources.items()])
    assert cycles(graph) == []
    assert cycles(package_graph(graph)) == ["server.core <-> server.table"]
    sources["server/core/limits.py"] = "from . import core"
    graph = module_graph([Module(path, text) for path, text in sources.items()])
    assert cycles(graph) == ["server.core.core <-> server.core.limits <-> server.table.kernels <-> server.table.table"]


def test_a_crowded_folder_is_found() -> None:
    crowd = [Module(f"server/m{number}.py", "") for number in range(MAX_MODULES)]
    assert excess_modules([*crowd, Module("server/__init__.py", "")]) == []
    assert excess_modules([*crowd, Module("server/one_more.py", "")]) == [f"server holds {MAX_MODULES + 1} modules"]
