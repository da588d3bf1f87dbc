"""`glovewire --help` and every command's help: quick, complete, and equal to what the program does."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest

from glovewire.cli.main import COMMANDS, program
from glovewire.common.cli.command import name

HEAVY = {"numpy", "scipy", "numba", "zmq", "msgpack", "rich", "matplotlib", "nltk", "datasets", "bokeh"}
PROBE = """
import json, sys
from glovewire.cli.main import main
try:
    main(*sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def help_of(*words: str) -> tuple[str, set[str]]:
    """The help page, and the modules that were imported to print it."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, *words, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout, set(json.loads(run.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy_and_lists_every_command() -> None:
    shown, modules = help_of()
    assert not HEAVY & modules
    assert not {f"{package}.cli" for package in ("preprocess", "server", "worker", "monitor", "vectors")} & modules
    for command, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(line[:30])}", shown, re.MULTILINE), shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_defaults_and_variables(command: str) -> None:
    shown, modules = help_of(command)
    assert not HEAVY - {"numpy"} & modules
    shown = " ".join(shown.replace("-\n", "-").split())
    loaded = program.get_command(click.Context(program), command)
    assert loaded is not None
    assert loaded.help
    for option in loaded.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        assert option.help, f"{command} --{name(option)} says nothing"
        variable = f"GLOVEWIRE_{command}_{name(option)}".upper().replace("-", "_")
        assert variable in shown.replace(" ", ""), f"{variable} is not shown"
        assert option.envvar == variable
        if isinstance(option.default, (int, float)) and not option.is_flag:
            assert f"default: {option.default}" in shown


def test_the_version() -> None:
    run = subprocess.run([sys.executable, "-m", "glovewire", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"glovewire \d+\.\d+\.\d+\n", run.stdout)
