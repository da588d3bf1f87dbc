"""The pages tell the truth: every message, link, command, option and make target in them exists, and none is missing.

The rules are functions of a page's text, so that each is also shown a page that lies.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import click
import pytest
from source import ROOT

from glovewire.cli.main import COMMANDS, program
from glovewire.common.protocol import messages
from glovewire.common.protocol.schema import PROTOCOL_VERSION

PROTOCOL = ROOT / "docs" / "protocol.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^ *```.*?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
MESSAGE_HEADING = re.compile(r"^### `(\w+)`.*$", re.MULTILINE)
SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")"}


# ---- messages


def test_the_protocol_page_names_the_version_of_the_code() -> None:
    page = PROTOCOL.read_text(encoding="utf-8")
    assert re.findall(r"(?:This is version|the version, now) (\d+)", page) == [str(PROTOCOL_VERSION)] * 2


def wrong_messages(page: str, known: Mapping[str, type]) -> list[str]:
    """What the protocol page says too much or too little: one `### \\`Name\\`` section a message, every field in it."""
    names = MESSAGE_HEADING.findall(page)
    complaints = [f"{name} has no section" for name in known if name not in names]
    complaints += [f"{name} is no message" for name in names if name not in known]
    complaints += [f"{name} has {names.count(name)} sections" for name in sorted(set(names)) if names.count(name) > 1]
    for name, section in _sections(page).items():
        code = _code(section)
        fields = dataclasses.fields(known[name]) if name in known else ()
        complaints += [f"{name}: no `{field.name}`" for field in fields if not _has_word(code, field.name)]
    return complaints


def _sections(page: str) -> dict[str, str]:
    """Each message's section: up to the next heading that is as high."""
    starts = list(MESSAGE_HEADING.finditer(page))
    return {start[1]: re.split(r"^#{1,3} ", page[start.end() :], maxsplit=1, flags=re.MULTILINE)[0] for start in starts}


def _code(text: str) -> str:
    """What stands as code: `a`, the field, not a, the article."""
    blocks = FENCE.findall(text)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def test_the_protocol_page_names_exactly_the_messages_that_exist() -> None:
    assert wrong_messages(PROTOCOL.read_text(encoding="utf-8"), messages.MESSAGES) == []


@pytest.mark.parametrize("name", messages.MESSAGES)
def test_every_message_stands_in_the_table_of_its_module(name: str) -> None:
    table = re.findall(r"^    .*$", messages.__doc__ or "", re.MULTILINE)
    assert any(_has_word(row, name) for row in table)


# ---- links


def dead_links(page: str, path: Path) -> list[str]:
    """Links of the page at `path` to files or headings that are not there; the web is not asked."""
    targets = LINK.findall(FENCE.sub("", page))
    return [target for target in targets if not re.match(r"[a-z]+:", target) and not _leads_somewhere(target, path)]


def _leads_somewhere(target: str, path: Path) -> bool:
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    if not there.is_relative_to(ROOT) or not there.exists():
        return False
    return not anchor or anchor in _anchors(there)


def _anchors(path: Path) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---- commands


def wrong_commands(page: str) -> list[str]:
    """Commands and options in the page's code blocks that the program or the Makefile does not have."""
    lines = [line for block in FENCE.findall(page) for line in block.replace("\\\n", " ").splitlines()]
    return [complaint for line in lines for words in _calls(line) for complaint in _wrong_call(words)]


def _calls(line: str) -> list[list[str]]:
    """The simple commands of a shell line, each as its words; a prompt and comments are not among them."""
    lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
    try:
        words = list(lexer)
    except ValueError:  # a quote in a transcript, not a command
        return []
    calls: list[list[str]] = [[]]
    for word in words:
        if word in SEPARATORS:
            calls.append([])
        elif calls[-1] or not re.match(r"\w+=", word):  # variables before a command
            calls[-1].append(word)
    return [call for call in calls if call]


def _wrong_call(words: list[str]) -> list[str]:
    if words[0] == "make":
        targets = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        return [f"make {target}" for target in targets if target not in _make_targets()]
    if words[0] != "glovewire" or len(words) == 1 or words[1].startswith("-"):
        return []
    if words[1] not in COMMANDS:
        return [f"glovewire {words[1]}"]
    options = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
    return [f"glovewire {words[1]} {option}" for option in sorted(options - _options(words[1]))]


@cache
def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@cache
def _options(name: str) -> set[str]:
    """Every option of a command; of a group, also those of what is below it."""
    context = click.Context(program)
    command = program.get_command(context, name)
    assert command is not None
    commands = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    parameters = [parameter for each in commands for parameter in each.get_params(context)]
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


# ---- over all pages


def of_all_pages() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


@of_all_pages()
def test_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path.read_text(encoding="utf-8"), path) == []


@of_all_pages()
def test_commands_exist(path: Path) -> None:
    assert wrong_commands(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", ["README.md", "docs/protocol.md", "docs/architecture.md", "docs/operations.md"])
def test_the_pages_that_people_look_for_are_there(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").split()) > 50


def test_every_command_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not _has_word(_code(text), name)] == []


# ---- paths and steps of the architecture page

OUR_PATH = re.compile(
    r"`((?:server|worker|common|preprocess|monitor|glovewire|tests|benchmarks|examples|docs)/[\w/.*-]*)`"
)
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", re.MULTILINE)
ARCHITECTURE = ROOT / "docs" / "architecture.md"
WALKS = ("One pull", "One push", "One lease")


def dead_paths(page: str) -> list[str]:
    """Files and folders of ours that a page names and that do not exist; `*` stands for any name."""
    return [path for path in OUR_PATH.findall(FENCE.sub("", page)) if not any(ROOT.glob(path.rstrip("/")))]


def steps(page: str, heading: str) -> list[tuple[str, str]]:
    """The steps of one walk through the code: module and function of each numbered line below a heading."""
    _, found, rest = page.partition(f"## {heading}\n")
    return STEP.findall(re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]) if found else []


def missing_functions(walk: list[tuple[str, str]]) -> list[str]:
    """Steps whose module does not define their function or method."""
    return [f"{path}: {name}" for path, name in walk if not ((ROOT / path).exists() and name in _defined(ROOT / path))]


@cache
def _defined(path: Path) -> set[str]:
    """Functions, classes and methods (`Class.method`) at the top of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return names | {f"{each.name}.{node.name}" for each in classes for node in each.body if isinstance(node, kinds)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths_exist(path: Path) -> None:
    assert dead_paths(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("walk", WALKS)
def test_the_steps_of_the_architecture_page_name_functions_that_exist(walk: str) -> None:
    found = steps(ARCHITECTURE.read_text(encoding="utf-8"), walk)
    assert len(found) >= 8
    assert missing_functions(found) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    assert dead_paths("`server/nowhere.py`, `common/`, `docs/decisions/*.md` and `elsewhere/x.py`") == [
        "server/nowhere.py"
    ]


def test_a_step_that_does_not_exist_is_found() -> None:
    pull = "1. `common/protocol/wire.py` `encode`: x\n2. `common/protocol/wire.py` `nothing`"
    page = f"## One pull\n\n{pull}\n## One push\n3. `x.py` `y`"
    walk = steps(page, "One pull")
    assert walk == [("common/protocol/wire.py", "encode"), ("common/protocol/wire.py", "nothing")]
    assert missing_functions([*walk, ("common/nowhere.py", "f")]) == [
        "common/protocol/wire.py: nothing",
        "common/nowhere.py: f",
    ]


# ---- every rule can fail


@dataclasses.dataclass(frozen=True)
class Ping:
    """A message for these tests."""

    a: int
    count: int


TRUE_PAGE = "## Messages\n\n### `Ping`\n\nHas `a` and\n\n```\ncount: int\n```\n\n### Other\n"


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (TRUE_PAGE.replace("`Ping`", "`Pong`"), "Ping has no section"),
        (TRUE_PAGE.replace("`Ping`", "`Pong`"), "Pong is no message"),
        (TRUE_PAGE + TRUE_PAGE, "Ping has 2 sections"),
        (TRUE_PAGE.replace("`a`", "a"), "Ping: no `a`"),
        (TRUE_PAGE.replace("count: int", "counts: int") + "`count` elsewhere", "Ping: no `count`"),
    ],
)
def test_a_protocol_page_that_lies_is_found(page: str, complaint: str) -> None:
    assert wrong_messages(TRUE_PAGE, {"Ping": Ping}) == []
    assert complaint in wrong_messages(page, {"Ping": Ping})


@pytest.mark.parametrize("target", ["nowhere.md", "docs/nowhere.md", "../outside.md", "#nowhere", "Makefile#help"])
def test_a_dead_link_is_found(target: str) -> None:
    assert dead_links(f"see [this]({target})", ROOT / "CONTRIBUTING.md") == [target]


def test_links_that_lead_somewhere_are_let_through(tmp_path: Path) -> None:
    page = "[a](Makefile) [b](https://example.org/x) [c](.ci/run) [d](#the-layout)\n```\n[e](nowhere)\n```\n"
    assert dead_links(page, ROOT / "CONTRIBUTING.md") == []


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("glovewire trian data/pydoc", "glovewire trian"),
        ("$ glovewire neighbours RUN x --nonsense 3", "glovewire neighbours --nonsense"),
        ("A=1 glovewire info x && glovewire infos y", "glovewire infos"),
        ("glovewire info x \\\n  --nonsense=1", "glovewire info --nonsense"),
        ("make tests", "make tests"),
        ("cd x; make EXTRAS=all traim", "make traim"),
    ],
)
def test_a_command_that_does_not_exist_is_found(block: str, complaint: str) -> None:
    assert wrong_commands(f"```sh\n{block}\n```\n") == [complaint]


@pytest.mark.parametrize(
    "block", ["make train", "make test EXTRAS=all", "glovewire --help", "glovewire info data/x --json  # a's", "it's"]
)
def test_commands_that_exist_are_let_through(block: str) -> None:
    assert wrong_commands(f"```\n{block}\n```\n") == []
